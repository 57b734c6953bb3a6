"""kube-scheduler's extender API: its messages, and the handlers of the verbs.

`extender` decodes a request and encodes its result, `handlers` decides, and `equivalence_cache`
caches results for pods with equal requirements.
"""

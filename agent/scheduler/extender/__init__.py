"""kube-scheduler's extender API: an HTTP server, its messages, and the handlers of the verbs.

`server` and `connections` bound threads, connections and time, and `http_routes` names the paths;
the webhook stands on them too. `extender` decodes a call and encodes its answer, `handlers` decide,
and `equivalence_cache` keeps results of pods that are alike.
"""

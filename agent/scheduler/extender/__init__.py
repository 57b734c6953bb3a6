"""kube-scheduler's extender API: an HTTP server, its messages, and the handlers of the verbs.

`server` and `connections` limit threads, connections and time, and `http_routes` defines routes;
the webhook uses them too. `extender` decodes a request and encodes its result, `handlers` decides,
and `equivalence_cache` caches results for pods with equal requirements.
"""

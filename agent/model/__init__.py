"""Values and their codecs: the data of the node, the cluster and the configuration, as frozen
structs.

Nothing here does I/O, decides or logs. `cpu`, `pod`, `devices` and `nrt` hold the values of their
subjects, `settings` one struct of options for each process. `objects` and `apiobjects` read objects
of the API server, `quantities` amounts as Kubernetes writes them, and `bounds` limits the size of
foreign text before it is kept. `snapshot` is the file with the agent's decisions, which the
frontends read; `notifications` and `notice` are the messages between both, and `verdict` is the
answer of a hook.
"""

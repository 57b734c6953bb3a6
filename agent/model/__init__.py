"""Values and their codecs: the data of the node, the cluster and the configuration, as frozen
structs.

No module here does I/O, decides or logs. `cpu`, `pod`, `devices` and `nrt` have the values of their
subjects, `settings` one struct of options for each process. `objects` reads objects of the API
server, `quantities` reads and writes Kubernetes quantities, and `bounds` limits the size
of text from others before it is kept. `snapshot` is the file with the agent's decisions, which the
frontends read; `notifications` are their messages to the agent. `notice` is the file in which a
container reads its CPUs. `verdict` is the answer of a hook.
"""

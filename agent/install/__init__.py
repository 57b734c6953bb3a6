"""Installs the proxy on a host whose kubelet already runs, and removes Topolet from nodes: `topolet
install-proxy`, `topolet uninstall-node` and `topolet uninstall-nodes`.

An installation (`proxy`) has four parts. `observe` reads how this node's kubelet is started and
configured, as a value; `unitfiles` reads its systemd unit. `endpoint` determines which file sets
the kubelet's runtime endpoint, and the text of that file with the proxy's socket. `plan` makes the
steps, in an order in which the kubelet has a runtime at every moment, and the steps that undo them.
`installer` executes the steps, and compares the containers that run with those that ran before. It
journals each change before it makes it, and undoes all changes when a step fails, or
when an earlier run was killed. `tree` reads and changes files below a root, and `folder` copies the
interpreter.

`uninstall` undoes everything on one node; `nodes` runs it in a pod on each node of a cluster.
"""

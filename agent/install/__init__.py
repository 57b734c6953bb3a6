"""The proxy as a service of a host whose kubelet already runs: `topolet install-proxy`, and
`topolet uninstall-node`.

`observe` reads how this node's kubelet is started and configured, as a value. `endpoint` decides
which file names the runtime's socket, and with which text the kubelet uses the proxy; `plan` makes
the steps, in an order in which the kubelet finds a runtime at every moment, and the steps back.
`installer` executes them: it journals each change before it makes it (`journal`), and goes back by
itself when a step fails, or when an earlier run was killed. `tree` changes files below a root,
`folder` copies the interpreter, `checks` asks the runtime and systemd whether all is as before.
"""

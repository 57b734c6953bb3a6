"""The NRI plugin's process: the frontend of the hooks for runtimes with NRI, in place of the proxy.

`daemon` puts the parts into one epoll loop. `link` connects to the runtime's socket and registers
the plugin, and does both again when the connection has ended. `ttrpc` carries calls both ways.
`service` serves the runtime's calls: it decodes them (`messages`) and calls `hooks`, which calls
admission. An answer may be Wait: the call is then held for at most half of the runtime's timeout.

`containers` keeps the values that the runtime has of each container. When the agent publishes a new
snapshot, it sends the runtime the values that differ, one container at a time and never inside a
call of the runtime. `conflicts` finds and names other writers of the same values.
"""

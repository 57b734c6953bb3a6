"""The HTTP ports of all processes, which answer probes whatever their other clients do.

`limits` decides who may stay connected and whose request is next, `peers` which clients are on the
node. `requests` reads a head and encodes a reply, `routes` finds the function that answers.
`connection` is one client in an epoll loop, `listener` all of them: the frontends on the host
answer in their own loop. `server` adds a thread for the loop and threads for requests, and
`certificates` TLS.
"""

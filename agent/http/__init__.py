"""The HTTP ports of all processes. They answer probes whatever other clients do.

A `listener` in an epoll loop accepts connections. `peers` determines which clients are on the node;
`limits` decides who may stay connected and whose request is next. Each client is a `connection`:
`requests` decodes the head of its request, finds the function that replies, checks what the client
must have (method, Content-Type, certificate, loopback address), and encodes the reply. Proxy and
NRI plugin run the listener in their own loop. `server`, for all other processes, runs it in a
thread, and requests in further threads. `certificates` adds TLS, and `page` the routes of a page
for browsers, whose files are in the folder `pages`."""

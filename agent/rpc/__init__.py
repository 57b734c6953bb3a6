"""gRPC without grpcio: HTTP/2 frames, header blocks and messages, for the relay and for the agent's
own calls.

`frames` and `headers` build and read the parts of HTTP/2, `grpc` the messages and statuses that
they carry. `unary` is a client's connection without I/O; `channel` runs it on a unix socket.
`held_calls` holds a server's calls until their answers are decided. `server` is the exception: a
server on grpcio, imported only if an option enables such a server.
"""

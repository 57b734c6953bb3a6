"""The agent as a hook server of koord-runtime-proxy (Koordinator), if the options enable it.

`server` listens with grpcio, and registers its hooks by a file that koord-runtime-proxy reads.
`service` answers each call in a thread: it decodes the call, asks admission, and holds
the call while the answer is Wait. The responses follow the rules by which koord-runtime-proxy
merges them into the runtime's request.
"""

"""The agent as a hook server of koord-runtime-proxy (Koordinator), where that is switched on.

`server` listens with grpcio, and registers its hooks by a file that koord-runtime-proxy reads.
`service` answers a call, one a thread: it decodes it (`messages`), calls admission, and holds the
call while the answer is Wait. The responses follow the rules by which koord-runtime-proxy merges
them into the runtime's request (`messages`).
"""

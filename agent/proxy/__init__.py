"""The proxy's process: the frontend of the hooks that relays the CRI socket.

`daemon` puts relay, hooks and metrics into one epoll loop. `gate` is the relay's gate: it
translates the CRI's messages for admission, and writes admission's changes into the messages. The
process uses neither the API server nor the devices: the agent's snapshot has all decisions.
"""

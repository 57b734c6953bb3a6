"""The relay of the CRI socket: it knows gRPC and HTTP/2, and nothing of the hooks but their `gate`.

`server` accepts clients in one epoll loop and opens one upstream connection for each (`pair`). So
stream numbers, header compression and flow-control windows are the ends' own, and frames pass as
they came. `relay` is the state machine between the two sockets, without I/O:

1. `forwarding` walks the frames of a direction. As long as nothing is taken over, all received
   bytes leave in one send of the receive buffer.
2. HEADERS of a hooked method pass too. The message of the call is collected (`calls`, `streams`),
   within the budget of the whole relay, and its bytes are given back to the client as credit.
3. The gate is asked, again and again while it answers Wait. Then the message, or another one in its
   place, or an error goes on. Other streams keep passing.
4. `flow_control` keeps windows and order right for what leaves later, longer or shorter than it
   came. When the last hooked call has ended and the debt is paid, frames pass by again.

`meter` observes the time of every call, and the relay's part of it.
"""

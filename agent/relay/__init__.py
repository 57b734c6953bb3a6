"""The relay of the CRI socket. It handles HTTP/2 and gRPC, and calls the hooks through a `gate`.

`server` accepts clients in one epoll loop and opens one upstream connection for each. So
stream numbers, header compression and flow-control windows are those of the endpoints, and frames
pass unchanged. `relay` is the state machine between the two sockets, without I/O:

1. It walks the frames of a direction. While the relay has taken over no message, all
   received bytes leave in one send of the receive buffer.
2. HEADERS of a hooked method pass too. The message of the call is collected (`calls`, `streams`),
   within the budget of the whole relay, and its bytes are returned to the client as flow-control
   credit.
3. The gate is called, repeatedly while it answers Wait. Then the relay forwards the message or a
   replacement, or answers with an error. Other streams keep passing.
4. `flow_control` keeps windows and order correct for messages that leave later, longer or shorter
   than they arrived. When the last hooked call has ended and no credit is owed, frames pass without
   being held again.

`meter` observes the time of every call, and the relay's part of it."""

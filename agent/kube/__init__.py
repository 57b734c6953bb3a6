"""The API server and the embedded store of standalone mode, behind one interface.

The interface is `objects.Objects`. `cluster` applies, reads and watches objects on an API server;
`store` does the same with YAML files. A watch runs in a thread (`listwatch`): WatchList if the
server supports it, list and watch otherwise, on one connection, whose events `wire` reads. It
compares them with the known state, and reports each change once (`objects.Mirror`).
`schedule` decides when the next request may be sent, so that the requests of a fleet spread out.
`transport` sends all other requests with the credentials of `auth`; `objects` knows the versions
of each kind that the server serves; `events` sends Events. `documents` reads YAML files that people
or other programs write; `errors` has the error for each Status of the server."""

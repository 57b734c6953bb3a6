"""The DRA driver for CPUs, in the agent's process: the kubelet calls it to prepare ResourceClaims.

`server` registers the driver at the kubelet and has its sockets, `service` answers the calls, and
`cdi` writes the files from which the runtime gives a container the CPUs of its claims as variables
and as the metadata of KEP-5304. Which CPUs a claim has is the agent's decision (`allocate.dra`);
they are enforced as those of every other owner."""

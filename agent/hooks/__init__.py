"""The hooks: the changes to one pod's or container's request, and the admission of requests.

A frontend (the relay's gate, the NRI plugin, Koordinator's hook server) translates its protocol to
the values of `requests` and calls `admission`. That reads the agent's decisions from its snapshot
(`agent_client`), and answers with changes, Wait or Refuse:

1. `cpuset` decides which CPUs, memory nodes and limits the container gets, by the snapshot and by
   the assumed containers, whose creation the agent has not seen yet.
2. `visibility` decides which devices it sees; it is loaded only where the agent decides about
   devices. `carriers` are the places of a request that name devices.
3. While the agent has not decided, admission notifies it and answers Wait, and the frontend asks
   again until its hook's deadline. Then the failure policy of the pod's class decides.

With its answer, admission assumes the new container. The frontend reports the result of the request
to admission, which notifies the agent.
"""

"""koord-runtime-proxy's merge of a response (resexecutor/cri/utils.go and container.go, v1.8.0),
reimplemented from its rules."""

from __future__ import annotations

from agent.proto import koordinator_hooks_pb2 as pb


def merged(
    request: pb.ContainerResourceHookRequest, response: pb.ContainerResourceHookResponse
) -> pb.ContainerResourceHookRequest:
    """The request that koord-runtime-proxy sends to the runtime."""
    result = pb.ContainerResourceHookRequest()
    result.CopyFrom(request)
    if response.container_envs:
        result.ClearField("container_envs")
        result.container_envs.update(response.container_envs)
    if response.HasField("container_resources"):
        ours, theirs = result.container_resources, response.container_resources
        for name in ("cpu_period", "cpu_shares", "memory_limit_in_bytes"):
            if getattr(theirs, name) > 0:
                setattr(ours, name, getattr(theirs, name))
        if theirs.cpu_quota != 0:
            ours.cpu_quota = theirs.cpu_quota
        if -1000 <= theirs.oom_score_adj <= 1000:
            ours.oom_score_adj = theirs.oom_score_adj
        ours.cpuset_cpus = theirs.cpuset_cpus
        ours.cpuset_mems = theirs.cpuset_mems
    return result

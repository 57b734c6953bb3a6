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
        merged_resources, changed = result.container_resources, response.container_resources
        for name in ("cpu_period", "cpu_shares", "memory_limit_in_bytes"):
            if getattr(changed, name) > 0:
                setattr(merged_resources, name, getattr(changed, name))
        if changed.cpu_quota != 0:
            merged_resources.cpu_quota = changed.cpu_quota
        if -1000 <= changed.oom_score_adj <= 1000:
            merged_resources.oom_score_adj = changed.oom_score_adj
        merged_resources.cpuset_cpus = changed.cpuset_cpus
        merged_resources.cpuset_mems = changed.cpuset_mems
    return result

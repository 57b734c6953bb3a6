"""A real kubelet's PodResources API on four NUMA nodes with cgroup v2."""

import pytest

from tests.integration.test_podresources import (
    test_cpus_and_memory_of_an_integer_guaranteed_pod,
    test_devices_of_a_plugin_near_a_numa_node_and_near_none,
    test_memory_of_several_numa_nodes_is_where_the_kubelet_allocates_it,
    test_reserved_memory_is_as_the_kubelet_is_configured,
)

__all__ = [
    "test_cpus_and_memory_of_an_integer_guaranteed_pod",
    "test_devices_of_a_plugin_near_a_numa_node_and_near_none",
    "test_memory_of_several_numa_nodes_is_where_the_kubelet_allocates_it",
    "test_reserved_memory_is_as_the_kubelet_is_configured",
]

pytestmark = pytest.mark.timeout(1200)

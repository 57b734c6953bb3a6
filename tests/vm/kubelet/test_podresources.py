"""A real kubelet's PodResources API on four NUMA nodes with cgroup v2."""

import pytest

from tests.integration.test_podresources import (
    test_cpus_and_memory_of_an_integer_guaranteed_pod,
    test_devices_of_a_plugin_with_and_without_a_numa_node,
    test_memory_of_several_numa_nodes_is_where_the_kubelet_allocates_it,
    test_reserved_memory_is_that_of_the_kubelets_configuration,
)

__all__ = [
    "test_cpus_and_memory_of_an_integer_guaranteed_pod",
    "test_devices_of_a_plugin_with_and_without_a_numa_node",
    "test_memory_of_several_numa_nodes_is_where_the_kubelet_allocates_it",
    "test_reserved_memory_is_that_of_the_kubelets_configuration",
]

pytestmark = pytest.mark.timeout(1200)

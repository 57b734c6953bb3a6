"""A real kubelet's PodResources API on four NUMA nodes with cgroup v2."""

import pytest

from tests.integration.test_podresources import (
    test_cpus_and_memory_of_an_integer_guaranteed_pod,
    test_devices_of_a_plugin_near_a_numa_node_and_near_none,
    test_memory_of_more_than_one_numa_node_is_where_the_kubelet_says,
    test_what_is_reserved_is_what_the_kubelet_was_told_to_keep,
)

__all__ = [
    "test_cpus_and_memory_of_an_integer_guaranteed_pod",
    "test_devices_of_a_plugin_near_a_numa_node_and_near_none",
    "test_memory_of_more_than_one_numa_node_is_where_the_kubelet_says",
    "test_what_is_reserved_is_what_the_kubelet_was_told_to_keep",
]

pytestmark = pytest.mark.timeout(1200)

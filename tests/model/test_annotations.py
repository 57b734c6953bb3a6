import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.cpuset import CpuSet


@pytest.mark.parametrize(
    ("text", "cpus", "nodes"),
    [
        (None, "", ()),
        ("", "", ()),
        ("null", "", ()),
        ("{}", "", ()),
        ('{"cpuset": "0-3,8"}', "0-3,8", ()),
        ('{"cpuset": " 2 , 1 "}', "1-2", ()),
        ('{"cpuset": "1", "later": [{"a": 1}]}', "1", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "2"}}]}', "", (1,)),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": 2}}]}', "", (1,)),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "100m"}}]}', "", (1,)),
        (
            '{"numaNodeResources": [{"node": 3, "resources": {"kubernetes.io/batch-cpu": "500"}},'
            ' {"node": 0, "resources": {"cpu": "1"}}]}',
            "",
            (3, 0),
        ),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "0"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "0.0"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "-1"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "0e3"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"memory": "1Gi"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1}]}', "", ()),
        (
            '{"numaNodeResources": [{"node": 2, "resources": {"memory": "1Gi"}},'
            ' {"node": 1, "resources": {"cpu": "2"}}, {"node": 0}]}',
            "",
            (2, 1, 0),
        ),
        ('{"cpuSharedPools": [{"socket": 0, "node": 2}, {"node": 1}]}', "", (2, 1)),
        (
            '{"cpuSharedPools": [{"socket": 0, "node": 0, "cpuset": "0-3"}],'
            ' "numaNodeResources": [{"node": 1, "resources": {"cpu": "2"}}]}',
            "",
            (1,),
        ),
        (
            '{"cpuSharedPools": [{"socket": 0, "node": 0}],'
            ' "numaNodeResources": [{"node": 1, "resources": {"memory": "1Gi"}}]}',
            "",
            (0,),
        ),
    ],
)
def test_resource_status(text: str | None, cpus: str, nodes: tuple[int, ...]) -> None:
    status = resource_status({} if text is None else {RESOURCE_STATUS: text})
    assert status.cpus() == CpuSet.parse(cpus)
    assert status.shared_numa_nodes() == nodes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("cpuset", "is not JSON"),
        ("\ud800", "is not JSON"),
        ('{"more": ' + "[" * 100_000, "is not JSON"),
        ("[]", "Expected `object | null`"),
        ('{"cpuset": 3}', "`$.cpuset`"),
        ('{"cpuset": "3-1"}', "cpuset: CPU list '3-1'"),
        ('{"cpuset": "0-4294967295"}', "beyond CPU"),
        ('{"numaNodeResources": {}}', "`$.numaNodeResources`"),
        ('{"cpuSharedPools": [{"socket": 0}]}', "missing required field `node`"),
        ('{"numaNodeResources": [{"resources": {}}]}', "missing required field `node`"),
    ],
)
def test_fault_names_annotation_and_place(text: str, reason: str) -> None:
    with pytest.raises(AnnotationError) as raised:
        resource_status({RESOURCE_STATUS: text}).cpus()
    assert raised.value.key == RESOURCE_STATUS
    assert reason in raised.value.reason
    assert str(raised.value) == f"annotation {RESOURCE_STATUS}: {raised.value.reason}"


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
near_misses = st.fixed_dictionaries(
    {}, optional={"cpuset": json_like, "numaNodeResources": json_like | st.lists(json_like)}
)


@given(st.text() | near_misses.map(repr) | near_misses.map(json.dumps))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(AnnotationError):
        status = resource_status({RESOURCE_STATUS: text})
        status.shared_numa_nodes()
        status.cpus()

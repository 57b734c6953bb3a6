"""Each annotation that Topolet reads is bounded before it is decoded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate import batch
from agent.allocate.device_holders import reported_devices
from agent.allocate.devices import partitions
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import DeviceLocality
from agent.model.devices import device_allocation, holding, interconnect
from agent.model.devices.device_object import GPU_PARTITIONS
from agent.model.nrt import node_annotations
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod import annotations
from agent.model.pod.annotations import QUIET_BYTES, AnnotationError
from agent.model.pod.pods import ANNOTATIONS, pod_metadata
from agent.model.pod.quiet import quiet_wishes
from agent.node import device_listing as listing

Read = Callable[[Mapping[str, str]], Any]


def _status(texts: Mapping[str, str]) -> None:
    status = annotations.resource_status(texts)
    status.cpus()
    status.shared_numa_nodes()
    status.amounts()


def _wishes(texts: Mapping[str, str]) -> None:
    for error in quiet_wishes(texts, frozenset())[1]:
        raise error


def _cpus(texts: Mapping[str, str]) -> None:
    node_annotations.reported_cpus(NodeTopology("n", (), annotations=dict(texts)))


WORD, TEXT, LIST = bounds.POD_VALUE_BYTES, bounds.POD_TEXT_BYTES, bounds.POD_LIST_BYTES
OF_OBJECT, OBJECT_LIST = bounds.OBJECT_VALUE_BYTES, bounds.OBJECT_LIST_BYTES
READERS: list[tuple[str, Read, int]] = [
    (annotations.RESOURCE_STATUS, _status, TEXT),
    (annotations.SHARED_CONTAINERS, annotations.shared_containers, WORD),
    (annotations.MIXED_CONTAINERS, annotations.mixed_containers, WORD),
    *((key, _wishes, most_bytes) for key, most_bytes in QUIET_BYTES.items()),
    (
        annotations.DEVICE_LOCALITY,
        lambda texts: annotations.device_locality(texts, DeviceLocality.OFF),
        WORD,
    ),
    (annotations.EXTENDED_RESOURCE_SPEC, batch.batch_resources, LIST),
    (annotations.DEVICE_ALLOCATED, device_allocation.allocated_devices, LIST),
    (annotations.DEVICE_ALLOCATED, device_allocation.virtual_functions, LIST),
    (annotations.RESOURCE_SPEC, annotations.resource_spec, WORD),
    (annotations.NUMA_TOPOLOGY_SPEC, annotations.numa_spec, WORD),
    (device_allocation.DEVICE_ALLOCATE_HINT, device_allocation.device_preferences, WORD),
    (device_allocation.DEVICE_JOINT_ALLOCATE, device_allocation.device_preferences, WORD),
    (device_allocation.GPU_PARTITION_SPEC, device_allocation.device_preferences, WORD),
    (node_annotations.SYSTEM_QOS, node_annotations.system_qos, OF_OBJECT),
    (node_annotations.RESERVATION, node_annotations.node_reservation, OF_OBJECT),
    (
        node_annotations.CPU_NORMALIZATION_RATIO,
        node_annotations.cpu_normalization_ratio,
        OF_OBJECT,
    ),
    (node_annotations.AMPLIFICATION_RATIO, node_annotations.amplification_ratios, OF_OBJECT),
    (node_annotations.CPU_TOPOLOGY, _cpus, OBJECT_LIST),
    (node_annotations.CPU_MANAGER_POLICY, node_annotations.cpu_manager, OF_OBJECT),
    (node_annotations.POD_CPU_ALLOCS, node_annotations.kubelet_allocated, OBJECT_LIST),
    (
        node_annotations.CPU_SHARED_POOLS,
        lambda texts: node_annotations.shared_pools(texts, node_annotations.CPU_SHARED_POOLS),
        OF_OBJECT,
    ),
    (listing.GONE_MINORS, listing.decode_gone, OBJECT_LIST),
    (interconnect.GPU_LINKS, interconnect.decode_links, OBJECT_LIST),
    (holding.DEVICES_CHECKPOINTS, reported_devices.of_device_object, OBJECT_LIST),
    (holding.GPU_CHECKPOINTS, reported_devices.of_device_object, OBJECT_LIST),
    (GPU_PARTITIONS, lambda texts: partitions.partitions({}, texts, {}), OBJECT_LIST),
]
EACH = pytest.mark.parametrize(
    ("key", "read", "max_bytes"), READERS, ids=[each[0] for each in READERS]
)


def refusal(key: str, read: Read, text: str) -> str:
    """The reason why the text is refused, "" if it is read."""
    try:
        read({key: text})
    except AnnotationError as error:
        refused = error
    else:
        return ""
    assert refused.key == key
    assert str(refused) == f"annotation {key}: {refused.reason}"
    assert len(refused.reason) <= bounds.REASON_CHARACTERS
    return refused.reason


@EACH
@pytest.mark.parametrize("character", [" ", "[", "9", "ä", "\ud800"])
def test_a_text_beyond_its_bound_is_refused_with_its_key(
    key: str, read: Read, max_bytes: int, character: str
) -> None:
    size = len(character.encode(errors="surrogatepass"))
    reason = f"has more than {max_bytes} bytes"
    assert refusal(key, read, character * (max_bytes // size + 1)) == reason
    assert refusal(key, read, character * (max_bytes // size)) != reason


def listed(entry: str, count: int) -> str:
    return "[" + ",".join([entry] * count) + "]"


@pytest.mark.parametrize(
    ("key", "max_bytes", "text"),
    [
        (
            annotations.RESOURCE_STATUS,
            bounds.MAX_NODES,
            lambda n: '{"cpuSharedPools":' + listed('{"node":0}', n) + "}",
        ),
        (
            annotations.RESOURCE_STATUS,
            bounds.MAX_NODES,
            lambda n: '{"numaNodeResources":' + listed('{"node":0}', n) + "}",
        ),
        (
            annotations.RESOURCE_STATUS,
            bounds.MAX_RESOURCES,
            lambda n: json.dumps(
                {
                    "numaNodeResources": [
                        {"node": 0, "resources": {f"r{each}": "1" for each in range(n)}}
                    ]
                }
            ),
        ),
        (
            annotations.SHARED_CONTAINERS,
            bounds.MAX_CONTAINERS,
            lambda n: ",".join(f"c{each}" for each in range(n)),
        ),
        (
            annotations.EXTENDED_RESOURCE_SPEC,
            bounds.MAX_CONTAINERS,
            lambda n: json.dumps({"containers": {f"c{each}": {} for each in range(n)}}),
        ),
        (
            annotations.DEVICE_ALLOCATED,
            bounds.MAX_DEVICES,
            lambda n: '{"gpu":' + listed('{"minor":0}', n) + "}",
        ),
        (
            annotations.DEVICE_ALLOCATED,
            bounds.MAX_RESOURCES,
            lambda n: json.dumps({f"type{each}": [] for each in range(n)}),
        ),
        (
            holding.DEVICES_CHECKPOINTS,
            bounds.MAX_PODS,
            lambda n: listed("{}", n),
        ),
        (
            holding.GPU_CHECKPOINTS,
            bounds.MAX_PODS,
            lambda n: listed("{}", n),
        ),
        (
            listing.GONE_MINORS,
            bounds.MAX_DEVICES,
            lambda n: json.dumps({"rdma": {str(each): each for each in range(n)}}),
        ),
    ],
)
def test_entries_are_bounded(key: str, max_bytes: int, text: Callable[[int], str]) -> None:
    read = next(each[1] for each in READERS if each[0] == key)
    assert refusal(key, read, text(max_bytes)) == ""
    assert str(max_bytes) in refusal(key, read, text(max_bytes + 1))


@pytest.mark.parametrize("size", [1, 4_100, 8_191])
def test_groups_of_a_cpu_list_are_parsed_in_linear_time(size: int) -> None:
    """One shift for each group takes minutes, one division for each part takes seconds."""
    part = f"0-8191:1/{size}"
    text = ",".join([part] * (bounds.POD_TEXT_BYTES // (len(part) + 1)))
    assert len(CpuSet.parse(text)) == -(-8_192 // size)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 40), st.data())
def test_groups_of_a_cpu_list_are_read_as_by_the_kernel(
    first: int, length: int, size: int, data: st.DataObject
) -> None:
    used = data.draw(st.integers(1, size))
    last = first + length
    wanted = {cpu for cpu in range(first, last + 1) if (cpu - first) % size < used}
    assert set(CpuSet.parse(f"{first}-{last}:{used}/{size}")) == wanted


def test_stored_metadata_is_truncated_and_still_refused_by_its_reader() -> None:
    texts = dict.fromkeys(ANNOTATIONS, "x" * (200 << 10))
    kept = pod_metadata({"app": "x" * 63}, {**texts, "other": "x" * (200 << 10)})
    assert kept.labels == {}
    assert {key: len(text) for key, text in kept.annotations.items()} == {
        key: max_bytes + 1 for key, max_bytes in ANNOTATIONS.items()
    }
    readers = {key: (read, max_bytes) for key, read, max_bytes in READERS}
    for key, text in kept.annotations.items():
        read, max_bytes = readers[key]
        assert refusal(key, read, text) == f"has more than {max_bytes} bytes"
    whole = {key: "x" * max_bytes for key, max_bytes in ANNOTATIONS.items()}
    assert pod_metadata({}, whole).annotations == whole


def test_a_wide_character_does_not_widen_stored_text() -> None:
    texts = {key: "\U0001f600" + "x" * (max_bytes - 4) for key, max_bytes in ANNOTATIONS.items()}
    for key, text in pod_metadata({}, texts).annotations.items():
        assert sys.getsizeof(text) < ANNOTATIONS[key] + 200


decoder = msgspec.json.Decoder(dict[str, int])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"a": 1', "is not JSON"),
        (b'{"\xff": 1}', "is not JSON"),
        ('{"\ud800": 1}', "is not JSON"),
        (b'{"a": "1"}', "Expected `int`, got `str` - at `$[...]`"),
    ],
)
def test_every_failure_is_a_json_error(text: bytes | str, reason: str) -> None:
    with pytest.raises(JsonError, match=reason.replace("$[...]", r"\$\[\.\.\.\]")):
        bounds.decode(decoder, text)


def test_deep_nesting_is_a_json_error() -> None:
    with pytest.raises(JsonError, match="is not JSON"):
        bounds.decode(msgspec.json.Decoder(), "[" * 100_000)


def test_control_characters_do_not_make_a_kept_text_longer() -> None:
    texts = {"ascii": "\0" * 100, "other": "\x1f\u00e4" * 100, "json": '{\n\t"a": 1\r\n}'}
    kept = bounds.kept(texts, dict.fromkeys(texts, 400))
    assert len(msgspec.json.encode(kept)) < 800
    assert msgspec.json.decode(kept["json"]) == {"a": 1}

"""What a node makes of its NodeSLO."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.bounds import REASON_CHARACTERS
from agent.model.node_slo import (
    CpuQos,
    MemoryQos,
    NodeSlo,
    QosClass,
    ResctrlQos,
    node_slo,
)

Json = dict[str, Any]
SECTIONS = tuple(field.encode_name for field in msgspec.structs.fields(NodeSlo))


def read(spec: object) -> tuple[NodeSlo, list[str]]:
    slo, troubles = node_slo({"metadata": {"name": "n"}, "spec": spec})
    return slo, [str(trouble) for trouble in troubles.values()]


@pytest.mark.parametrize(
    "spec",
    [None, {}, dict.fromkeys(SECTIONS), {"extensions": {"any": 3}}, {"cpuBurstStrategy": {}}],
)
def test_what_a_spec_leaves_out_has_the_defaults(spec: Json | None) -> None:
    assert read(spec) == (NodeSlo(), [])
    assert node_slo({"metadata": {"name": "n"}}) == (NodeSlo(), {})


def test_a_null_and_an_unknown_field_change_nothing() -> None:
    slo, troubles = read({"cpuBurstStrategy": {"cpuBurstPercent": None, "later": 1}})
    assert (slo, troubles) == (NodeSlo(), [])


@pytest.mark.parametrize(
    ("name", "enabled"),
    [
        (
            "lsrClass",
            QosClass(
                cpu_qos=CpuQos(True, 2, 0, core_expeller=True),
                resctrl_qos=ResctrlQos(True),
                memory_qos=MemoryQos(
                    True, wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25
                ),
            ),
        ),
        (
            "beClass",
            QosClass(
                cpu_qos=CpuQos(True, -1),
                resctrl_qos=ResctrlQos(True, cat_range_end_percent=30),
                memory_qos=MemoryQos(
                    True, wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=50
                ),
            ),
        ),
    ],
)
def test_a_class_has_its_own_defaults_where_it_is_enabled(name: str, enabled: QosClass) -> None:
    blocks = {block: {"enable": True} for block in ("cpuQOS", "resctrlQOS", "memoryQOS")}
    slo, troubles = read({"resourceQOSStrategy": {name: blocks}})
    assert not troubles
    by_name = msgspec.to_builtins(slo)["resourceQOSStrategy"]
    assert by_name[name] == msgspec.to_builtins(enabled)


def test_only_the_switched_blocks_of_pod_classes_are_neutral_where_they_are_off() -> None:
    blocks: Json = {
        "memoryQOS": {"wmarkRatio": 80},
        "networkQOS": {"ingressLimit": "50M"},
        "blkioQOS": {"blocks": [{"name": "vg0", "type": "volumegroup"}]},
    }
    slo, troubles = read({"resourceQOSStrategy": {"lsClass": blocks, "systemClass": blocks}})
    pods, system = slo.resource_qos_strategy.ls_class, slo.resource_qos_strategy.system_class
    assert not troubles
    assert pods.memory_qos == MemoryQos()
    assert system.memory_qos == MemoryQos(wmark_ratio=80)
    assert pods.network_qos.ingress_limit == "50M"
    assert [each.name for each in pods.blkio_qos.blocks] == ["vg0"]


@pytest.mark.parametrize(
    ("section", "value", "path"),
    [
        ("cpuBurstStrategy", {"cpuBurstPercent": 0}, ".cpuBurstPercent"),
        ("cpuBurstStrategy", {"policy": "all"}, ".policy"),
        ("cpuBurstStrategy", 3, ""),
        (
            "resourceUsedThresholdWithBE",
            {"cpuSuppressThresholdPercent": 101},
            ".cpuSuppressThresholdPercent",
        ),
        ("resourceUsedThresholdWithBE", {"enable": "yes"}, ".enable"),
        (
            "resourceQOSStrategy",
            {"beClass": {"cpuQOS": {"groupIdentity": 3}}},
            ".beClass.cpuQOS.groupIdentity",
        ),
        (
            "resourceQOSStrategy",
            {"lsClass": {"networkQOS": {"egressLimit": "much"}}},
            ".lsClass.networkQOS.egressLimit",
        ),
        (
            "resourceQOSStrategy",
            {"cgroupRoot": {"blkioQOS": {"blocks": [{"ioCfg": {"ioWeightPercent": 0}}]}}},
            ".cgroupRoot.blkioQOS.blocks[0].ioCfg.ioWeightPercent",
        ),
        ("systemStrategy", {"totalNetworkBandwidth": "1Q"}, ".totalNetworkBandwidth"),
        ("systemStrategy", {"watermarkScaleFactor": 401}, ".watermarkScaleFactor"),
        ("hostApplications", [{"cgroupPath": {"base": "Root"}}], "[0].cgroupPath.base"),
        ("hostApplications", [{"name": "a"}] * 129, ""),
    ],
)
def test_a_bad_value_is_named_and_puts_only_its_section_out_of_force(
    section: str, value: object, path: str
) -> None:
    others: Json = {
        "cpuBurstStrategy": {"policy": "auto"},
        "systemStrategy": {"minFreeKbytesFactor": 50},
    }
    slo, (trouble,) = read({**others, section: value})
    assert trouble.startswith(f"NodeSLO n: spec.{section}{path}: ")
    assert (slo, []) == read({**others, section: None})


def test_a_trouble_quotes_only_the_begin_of_a_long_value() -> None:
    _, (trouble,) = read({"cpuBurstStrategy": {"policy": "x" * 10_000}})
    assert len(trouble) <= REASON_CHARACTERS + len("NodeSLO n: ")


def test_an_object_without_a_readable_spec_leaves_the_defaults() -> None:
    slo, troubles = read([])
    assert slo == NodeSlo()
    assert troubles == ["NodeSLO n: spec: Expected `object | null`, got `array`"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("enable", "policy", "lsClass", "beClass", "cpuQOS", "blkioQOS", "blocks", "name")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(SECTIONS), VALUES))
def test_each_section_is_read_as_if_it_were_alone(spec: Json) -> None:
    slo, troubles = read(spec)
    for field in msgspec.structs.fields(NodeSlo):
        alone, trouble = read({key: spec[key] for key in (field.encode_name,) if key in spec})
        assert getattr(slo, field.name) == getattr(alone, field.name)
        assert set(trouble) <= set(troubles)
        if trouble:
            assert alone == NodeSlo()
    assert len(troubles) <= len(spec)


@given(st.dictionaries(st.sampled_from(SECTIONS), VALUES))
def test_what_a_node_uses_is_itself_valid(spec: Json) -> None:
    slo, _ = read(spec)
    again, troubles = read(msgspec.to_builtins(slo))
    assert not troubles
    assert msgspec.to_builtins(again) == msgspec.to_builtins(slo)

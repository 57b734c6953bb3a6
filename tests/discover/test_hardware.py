"""CPU models, caches and kinds of memory of real and constructed machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.discover import cpus, hardware
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import CpuModel, Hardware, MemoryKind, MemoryTraits
from tests.fixtures.trees import CPU, NODE, Files, machine, meminfo, write

TIERS = "sys/devices/virtual/memory_tiering"
NO_CPUS = {f"{NODE}/node1/cpumap": "0", f"{NODE}/node1/cpulist": "", f"{NODE}/node0/cpumap": "f"}


def read(root: str) -> Hardware:
    return hardware.read(root, cpus.read(root))


def constructed(
    folder: Path, files: Files, links: Sequence[tuple[str, str]] = (), shape: tuple[int, ...] = (2,)
) -> Hardware:
    return read(write(str(folder), machine(*shape) | files, links))


def kinds(found: Hardware) -> dict[int, str | None]:
    return {each.node: each.kind for each in found.memory}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("nvidiagpunumanodes", "POWER9, altivec supported"),
        ("128arm-2pa2n8cluster4co", "implementer 0x48, part 0xd01"),
        ("2arm-2c", "ARMv7 Processor rev 1 (v7l)"),
        ("256ia64-64n2s2c", "GenuineIntel family 32"),
        ("offline-cpu0-node0", "Intel(R) Xeon(R) CPU E5-2680 v3 @ 2.50GHz"),
    ],
)
def test_the_model_of_real_machines(name: str, model: str, snapshot: Callable[[str], str]) -> None:
    root = snapshot(name)
    assert read(root).models == (CpuModel(model, cpus.read(root).online),)


def test_models_of_a_hybrid_machine(tmp_path: Path) -> None:
    processors = ["processor : 0\nCPU part : 0xd46\n", "processor : 1\nCPU part : 0xd47\n"]
    found = constructed(tmp_path, {"proc/cpuinfo": "\n".join(processors)}, shape=(1, 1, 1, 2))
    assert [(each.name, str(each.cpus)) for each in found.models] == [
        ("implementer unknown, part 0xd46", "0"),
        ("implementer unknown, part 0xd47", "1"),
    ]


@pytest.mark.parametrize("text", ["", "processor: x\n\n:\n", "processor : 99999999999999999999\n"])
def test_a_cpuinfo_without_models(text: str, tmp_path: Path) -> None:
    assert constructed(tmp_path, {"proc/cpuinfo": text}).models == ()


def test_caches_of_threads_are_counted_once(tmp_path: Path) -> None:
    found = constructed(tmp_path, {}, shape=(2, 1, 2, 2, 2))
    groups = {(each.level, each.kind): each for each in found.caches}
    assert list(groups) == [(1, "data"), (1, "instruction"), (2, "unified"), (3, "unified")]
    assert [len(each.shared_by) for each in found.caches] == [8, 8, 8, 4]
    assert [each.size_bytes for each in found.caches] == [512 << 10] * 3 + [32 << 20]
    shared = groups[3, "unified"].shared_by  # type: ignore[index]
    assert [str(each) for each in shared] == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]


def test_caches_of_two_sizes_are_two_groups(tmp_path: Path) -> None:
    path = f"{CPU}/cpu1/cache/index2"
    found = constructed(
        tmp_path, {f"{path}/size": "2048K", f"{path}/level": "2"}, shape=(1, 1, 1, 4)
    )
    sizes = [(each.size_bytes, len(each.shared_by)) for each in found.caches if each.level == 2]
    assert sizes == [(2 << 20, 1), (512 << 10, 3)]


@pytest.mark.parametrize(
    "files",
    [
        {"index3/level": "three"},
        {"index3/size": "much"},
        {"index3/type": "Trace"},
        {"index3/shared_cpu_map": "zz"},
    ],
)
def test_an_invalid_cache_file_does_not_cause_an_error(files: Files, tmp_path: Path) -> None:
    of_cpu = {f"{CPU}/cpu0/cache/{path}": text for path, text in files.items()}
    assert len(constructed(tmp_path, of_cpu, shape=(1, 1, 1, 1)).caches) in (3, 4)


def test_lists_that_contradict_the_maps(snapshot: Callable[[str], str]) -> None:
    """The map overrides the list: every list of this machine is that of CPU 0."""
    l3 = read(snapshot("64fake-4n2s2ca2c2t")).caches[-1]
    assert (l3.level, len(l3.shared_by), str(l3.shared_by[1])) == (3, 8, "8-15")


def test_memory_of_gpus_and_of_nvdimms(snapshot: Callable[[str], str]) -> None:
    gpus = kinds(read(snapshot("nvidiagpunumanodes")))
    assert gpus == {0: "dram", 8: "dram"} | dict.fromkeys(range(250, 256), "gpu")
    tiers = read(snapshot("fakeheteromemtiers"))
    assert kinds(tiers) == {
        0: "dram", 1: "dram", 2: "hbm", 4: "hbm", 6: "persistent", 8: "persistent", 9: "persistent"
    }  # fmt: skip
    assert tiers.memory[2] == MemoryTraits(2, MemoryKind.HBM, None, 10_000)


def test_cxl_memory_by_its_bus(tmp_path: Path) -> None:
    region = "sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax0.0"
    files = NO_CPUS | {f"{region}/target_node": "1", f"{TIERS}/memory_tier4/nodelist": "0"}
    files |= {f"{TIERS}/memory_tier22/nodelist": "1"}
    found = constructed(tmp_path, files, [("sys/bus/dax/devices", "../../devices/platform/links")])
    assert kinds(found) == {0: "dram", 1: "slow"}, "the tier alone decides"
    folder = tmp_path / "sys/devices/platform/links"
    folder.mkdir()
    (folder / "dax0.0").symlink_to(f"../../../../{region}")
    found = read(str(tmp_path))
    assert [(each.kind, each.tier) for each in found.memory] == [("dram", 4), ("cxl", 22)]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [((100, 400), "hbm"), ((100, 120), "dram"), ((100, 30), "slow"), ((0, 30), None)],
)
def test_the_kind_by_bandwidth(
    rates: tuple[int, int], expected: str | None, tmp_path: Path
) -> None:
    files = dict(NO_CPUS)
    for node, rate in enumerate(rates):
        files[f"{NODE}/node{node}/access1/initiators/read_bandwidth"] = str(rate)
        files[f"{NODE}/node{node}/access1/initiators/read_latency"] = "90"
        files[f"{NODE}/node{node}/access0/initiators/read_latency"] = "7"
    found = constructed(tmp_path, files)
    assert kinds(found)[1] == expected
    assert {each.read_latency_ns for each in found.memory} == {90}


def test_a_side_cache_and_a_node_without_memory(tmp_path: Path) -> None:
    cache = f"{NODE}/node0/memory_side_cache"
    sizes = {
        f"{cache}/index1/size": str(16 << 30),
        f"{cache}/index2/size": "x",
        f"{cache}/uevent": "",
    }
    found = constructed(tmp_path, sizes | {f"{NODE}/node1/meminfo": meminfo(1, 0)})
    assert found.memory == (
        MemoryTraits(0, MemoryKind.DRAM, side_cache_bytes=16 << 30),
        MemoryTraits(1),
    )


def test_a_machine_without_any_of_these_files(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu0/topology/core_id": "0", "proc/meminfo": "MemTotal: 4 kB"}
    expected = Hardware(memory=(MemoryTraits(0, MemoryKind.DRAM),))
    assert read(write(str(tmp_path), files)) == expected
    assert cpus.read(str(tmp_path)).online == CpuSet([0])

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet import statefile
from agent.kubelet.cpu_manager_state import (
    FILE_NAME,
    CpuManagerState,
    CpuManagerStateWatch,
    decode,
    encode,
    read,
)
from agent.kubelet.statefile import Checked, StateFileError
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from tests.conftest import DATA
from tests.kubelet.state_files import KUBELETS_OWN

VECTORS = DATA / "vectors" / "kubelet-state-files.jsonl"


def real_files() -> list[str]:
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    return [row["content"] for row in rows if row["file"] == "cpu_manager_state"]


def text(**content: Any) -> bytes:
    return json.dumps({"policyName": "static", "defaultCpuSet": "0"} | content).encode()


def test_real_files(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files = real_files()
    assert len(files) == 11
    for each in files:
        path.write_text(each)
        state, raw = read(str(path)), json.loads(each)
        assert (state.version, state.checked, state.problems) == (2, Checked.VERIFIED, ())
        assert state.static == (raw["policyName"] == "static")
        assert state.by_uid.keys() == raw.get("entries", {}).keys()
        assert str(state.default) == raw["defaultCpuSet"]
        assert not union(state.by_uid.values()) & state.default
        assert encode(state).decode() == each


def test_truncated_real_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for each in real_files():
        for cut in range(0, len(each), 7):
            path.write_text(each[:cut])
            with pytest.raises(StateFileError, match=str(path)):
                read(str(path))


def test_real_files_with_a_digit_changed_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for each in real_files():
        if '"none"' in each:
            continue
        before, _, after = each.partition('"defaultCpuSet":"')
        digit = "1" if after[0] == "0" else "0"
        path.write_text(f'{before}"defaultCpuSet":"{digit}{after[1:]}')
        with pytest.raises(StateFileError, match=f"{path}: checksum"):
            read(str(path))
        assert decode(path.read_bytes()).checked is Checked.MISMATCH


@pytest.mark.parametrize("name", KUBELETS_OWN)
def test_versions_and_checksums_of_the_kubelet(name: str) -> None:
    version, content = KUBELETS_OWN[name]
    state = decode(json.dumps(content).encode())
    assert (state.version, state.checked) == (version, Checked.VERIFIED)
    assert state.static
    content = content | {"checksum": content["checksum"] ^ 1}
    assert decode(json.dumps(content).encode()).checked is Checked.MISMATCH


def test_containers_by_id_belong_to_no_pod() -> None:
    state = decode(json.dumps(KUBELETS_OWN["containers by id"][1]).encode())
    assert state.by_container_id == {
        "containerID1": CpuSet([4, 5, 6]),
        "containerID2": CpuSet([1, 2, 3]),
    }
    assert state.by_uid == state.entries == {}


def test_cpus_of_a_pod_are_its_own_and_those_of_all_its_containers() -> None:
    state = decode(
        text(entries={"u": {"a": "1-2", "b": "9"}}, podEntries={"u": {"cpuSet": "1-3"}, "w": {}})
    )
    assert state.by_uid == {"u": CpuSet([1, 2, 3, 9]), "w": EMPTY}
    assert (state.version, state.checked) == (3, Checked.UNKNOWN)


def test_without_entries_the_checksum_determines_the_version() -> None:
    without_entries = CpuManagerState("static", CpuSet([0]), version=2)
    for version in (2, 3):
        state = decode(encode(msgspec.structs.replace(without_entries, version=version)))
        assert (state.version, state.checked) == (version, Checked.VERIFIED)


def test_the_data_field_overrides_the_fields_next_to_it() -> None:
    data = json.dumps(
        {
            "policyName": "static",
            "defaultCpuSet": "0,3",
            "entries": {"u": {"c": "1-2"}},
            "originals": {"u": {"c": {"original": "1"}}},
        }
    )
    raw = text(entries={"u": {"c": "8"}}, checksum=0, data=data, dataChecksum=0)
    state = decode(raw)
    assert state.entries == {"u": {"c": CpuSet([1, 2])}}
    assert state.originals == {"u": {"c": CpuSet([1])}}
    assert (state.version, state.checked, state.problems) == (4, Checked.UNKNOWN, ())


def test_unknown_fields_of_the_data_are_named() -> None:
    """The checksum covers the whole text."""
    state = CpuManagerState("static", CpuSet([0]), version=4)
    data = '{"policyName":"static","defaultCpuSet":"0","later":1}'
    outer = json.loads(encode(state)) | {"data": data, "also": 1}
    outer["dataChecksum"] = statefile.checksum_of("string", data)
    decoded = decode(json.dumps(outer).encode())
    assert decoded == msgspec.structs.replace(
        state,
        checked=Checked.VERIFIED,
        problems=("also: unknown field", "data.later: unknown field"),
    )


def test_wrong_checksum_of_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = CpuManagerState("static", CpuSet([0, 3]), {"u": {"c": CpuSet([1])}}, version=4)
    path.write_bytes(encode(state).replace(b"0,3", b"0,2"))
    with pytest.raises(StateFileError, match=f"{path}: dataChecksum"):
        read(str(path))


def test_one_invalid_cpuset_does_not_affect_the_others(tmp_path: Path) -> None:
    entries = {"u": {"a": "1-", "b": "4"}, "v": {"a": 7, "c": "5"}, "w": [1], "x": {"a": "6"}}
    state = decode(text(entries=entries, podEntries={"y": {"cpuSet": "z"}}, checksum=1))
    assert state.by_uid == {"u": CpuSet([4]), "v": CpuSet([5]), "x": CpuSet([6])}
    assert [problem.split(": ")[0] for problem in state.problems] == [
        "entries.u.a",
        "entries.v.a",
        "entries.w",
        "podEntries.y",
    ]
    assert (state.version, state.checked) == (None, Checked.UNKNOWN)


def test_invalid_cpuset_with_a_correct_checksum_is_verified() -> None:
    """The checksum covers the text, not its meaning."""
    entries = {"pod": {"c": "asd"}}
    content = {"policyName": "static", "defaultCpuSet": "1-3", "entries": entries}
    hashed = (
        "{PolicyName:(string)static DefaultCPUSet:(string)1-3 Entries:"
        "(map[string]map[string]string)map[pod:map[c:asd]] Checksum:(checksum.Checksum)0}"
    )
    computed = statefile.checksum_of("*state.CPUManagerCheckpoint", hashed)
    state = decode(json.dumps(content | {"checksum": computed}).encode())
    assert (state.version, state.checked, state.entries) == (2, Checked.VERIFIED, {"pod": {}})
    assert len(state.problems) == 1


def test_pod_with_invalid_cpus_is_named() -> None:
    state = decode(text(podEntries={"u": {"cpuSet": None}, "v": None}, checksum=1))
    assert (state.pods, len(state.problems), state.version) == ({}, 2, None)


def test_later_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(text(entries={"u": {"a": "1"}}, containerEntries={"u": {}}, checksum=5))
    state = read(str(path))
    assert state.by_uid == {"u": CpuSet([1])}
    assert (state.version, state.checked) == (None, Checked.UNKNOWN)
    assert state.problems == ("containerEntries: unknown field",)


def test_absent_file_means_policy_none(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) == CpuManagerState("none")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff", "is not JSON"),
        (b'{"x":' + b"[" * 100_000, "is not JSON"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"entries":{}}', "policyName is missing"),
        (b'{"policyName":null}', "policyName is missing"),
        (b'{"policyName":1}', "policyName: is a int"),
        (text(entries=[]), "entries: is a list"),
        (text(checksum="1"), "checksum: is a str"),
        (text(checksum=True), "checksum: is a bool"),
        (text(data=1), "data: is a int"),
        (text(data=""), "data: is not JSON"),
        (text(data="{}"), "policyName is missing"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(raw)
    with pytest.raises(StateFileError, match=f"{path}: {reason}"):
        read(str(path))


def test_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="Is a directory"):
        read(str(tmp_path))


NAMES = st.text("abc-0", min_size=1, max_size=4)
SETS = st.frozensets(st.integers(0, 40)).map(CpuSet)


@given(
    version=st.sampled_from([2, 3, 4]),
    default=SETS,
    entries=st.dictionaries(NAMES, st.dictionaries(NAMES, SETS), max_size=3),
    pods=st.dictionaries(NAMES, SETS, max_size=3),
)
def test_written_file_is_read_and_verified(
    version: int, default: CpuSet, entries: dict[str, dict[str, CpuSet]], pods: dict[str, CpuSet]
) -> None:
    if version == 2:
        pods = {}
    state = CpuManagerState("static", default, entries, pods=pods, version=version)
    decoded = decode(encode(state))
    assert decoded == msgspec.structs.replace(state, checked=Checked.VERIFIED)


def test_file_of_a_kubelet_with_pod_level_cpus() -> None:
    """Written by the code of kubelet 1.36.3 with PodLevelResourceManagers."""
    raw = (
        b'{"policyName":"static","defaultCpuSet":"97","podEntries":{"pod-3":{}},'
        b'"checksum":2942016023}'
    )
    state = decode(raw)
    assert (state.pods, state.version, state.checked) == ({"pod-3": EMPTY}, 3, Checked.VERIFIED)
    assert encode(state) == raw


def test_file_is_written_as_go_does() -> None:
    entries = {"v": {"c": CpuSet([5])}, "u": {"d": CpuSet([4]), "c": CpuSet([1, 2, 3])}}
    pods = {"w": CpuSet([6]), "p": EMPTY}
    state = CpuManagerState("static", CpuSet([0]), entries, pods=pods, version=3)
    text = (
        '{"policyName":"static","defaultCpuSet":"0",'
        '"entries":{"u":{"c":"1-3","d":"4"},"v":{"c":"5"}},'
        '"podEntries":{"p":{},"w":{"cpuSet":"6"}},"checksum":'
    )
    assert encode(state).decode().startswith(text)
    data = text.removesuffix(',"checksum":') + "}"
    written = json.loads(encode(msgspec.structs.replace(state, version=4)))
    assert list(written) == [*json.loads(data), "checksum", "data", "dataChecksum"]
    assert (written["data"], written["checksum"]) == (data, 0)


@pytest.mark.parametrize(
    "state",
    [
        CpuManagerState(version=1),
        CpuManagerState(),
        CpuManagerState(version=2, pods={"u": EMPTY}),
        CpuManagerState(version=4, originals={"u": {}}),
    ],
)
def test_versions_that_are_not_written(state: CpuManagerState) -> None:
    with pytest.raises(ValueError, match="can be written"):
        encode(state)


def test_the_watch_reports_a_replaced_file_of_a_folder_that_is_created_later(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "kubelet"
    watch = CpuManagerStateWatch(str(folder))
    with contextlib.closing(watch):
        assert not watch.watching
        folder.mkdir()
        watch.try_again()
        assert watch.watching
        assert not watch.read()
        (folder / "other").write_text("{}")
        assert not watch.read()
        (folder / "new").write_text("{}")
        (folder / "new").rename(folder / FILE_NAME)
        assert watch.read()
        assert not watch.read()
        (folder / "other").unlink()
        (folder / FILE_NAME).unlink()
        folder.rmdir()
        watch.read()
        assert not watch.watching

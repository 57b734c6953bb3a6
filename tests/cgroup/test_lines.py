"""Values of single disks in files with a line for each disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import lines

IO_MAX = "8:16 rbps=max wbps=9 riops=max wiops=7\n8:1 rbps=5 wbps=max riops=max wiops=max"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max 100000", "cpu.max", "max 100000"),
        (IO_MAX, "io.max 8:1 rbps", "5"),
        (IO_MAX, "io.max 8:16 wiops", "7"),
        (IO_MAX, "io.max 8:0 rbps", ""),
        (IO_MAX, "io.max 8:1 bps", ""),
        ("", "io.max 8:1 rbps", ""),
        ("default 100\n8:1 50", "io.weight 8:1", "50"),
        ("8:1 1048576\n8:16 3", "blkio.throttle.read_bps_device 8:1", "1048576"),
        ("8:1 enable=1 ctrl=auto", "io.cost.qos 8:1", "enable=1 ctrl=auto"),
    ],
)
def test_a_value_is_that_of_its_disk(text: str, name: str, value: str) -> None:
    assert lines.value(text, name) == value


@pytest.mark.parametrize(
    ("name", "text", "written"),
    [
        ("cpu.max", "max 100000", "max 100000"),
        ("io.max 8:1 rbps", "5", "8:1 rbps=5"),
        ("io.weight 8:1", "default", "8:1 default"),
    ],
)
def test_only_that_value_is_written(name: str, text: str, written: str) -> None:
    assert lines.written(name, text) == written


@given(
    st.dictionaries(
        st.from_regex(r"\A[0-9]{1,2}:[0-9]{1,2}\Z"), st.integers(0, 1 << 63).map(str), max_size=5
    )
)
def test_what_was_written_is_read(values: dict[str, str]) -> None:
    for file in ("io.max {} wbps", "io.weight {}"):
        names = {file.format(disk): value for disk, value in values.items()}
        text = "\n".join(lines.written(*pair) for pair in names.items())
        assert {name: lines.value(text, name) for name in names} == names
        assert {lines.file_of(name) for name in names} <= {file.split()[0]}

import os
from pathlib import Path

import pytest

from agent.cgroup.journal import Journal, JournalError, Original, OriginalValue, peek
from agent.host import files

A = Original("/a", "0-3")
B = Original("/b", "", "inherited")
QUOTA = OriginalValue("/a", "cpu.max", "max 100000")
MEMORY = OriginalValue("/a", "memory.max", "max")


def test_entries_are_read_back_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "run/topolet/journal"
    journal = Journal(path)
    assert journal.originals == {}
    assert not path.exists()
    journal.update([B, A])
    again = Journal(path)
    assert list(again.originals.items()) == [("/a", A), ("/b", B)]
    assert again.problems == ()
    assert "/a" in again
    assert "/c" not in again
    assert os.listdir(path.parent) == ["journal"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_first_value_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.update([A])
    journal.update([Original("/a", "1"), B])
    assert Journal(tmp_path / "j").originals == {"/a": A, "/b": B}


def test_a_recreated_group_gets_a_new_entry(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.update([A])
    journal.update([Original("/a", "1")], remove=["/a", "/never"])
    assert Journal(tmp_path / "j").originals == {"/a": Original("/a", "1")}
    journal.remove(["/a"])
    assert Journal(tmp_path / "j").originals == {}


def test_an_unchanged_journal_is_not_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.update([A])
    (tmp_path / "j").unlink()
    journal.update([A], remove=["/x"])
    assert not (tmp_path / "j").exists()


def test_a_journal_that_outlives_its_boot_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups and interrupts of the next boot have the same names."""
    path = tmp_path / "j"
    journal = Journal(path)
    journal.update([B, A])
    journal.update_values([QUOTA])
    assert (Journal(path).originals, peek(path)[0]) == ({"/a": A, "/b": B},) * 2
    monkeypatch.setattr(files, "boot_id", lambda: "the next one")
    after = Journal(path)
    assert (after.originals, after.values, after.problems) == ({}, {}, ())
    assert peek(path) == ({}, {})
    after.update_values([MEMORY])
    again = Journal(path)
    assert (again.originals, list(again.values.values())) == ({}, [MEMORY])


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    odd = Original(os.fsdecode(b"/a/\xff\x01 \"'\x85"), "1")
    Journal(tmp_path / "j").update([odd])
    assert Journal(tmp_path / "j").originals == {odd.group: odd}


def test_values_of_other_files_are_stored_with_the_cpuset(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.update([A])
    journal.update_values([QUOTA, MEMORY])
    journal.update_values([OriginalValue("/a", "cpu.max", "5 100000")])
    again = Journal(tmp_path / "j")
    assert again.originals == {"/a": A}
    assert list(again.values.values()) == [QUOTA, MEMORY]
    assert "/a" in again
    assert ("/a", "cpu.max") in again
    assert ("/a", "cpu.weight") not in again
    again.remove(["/a"])
    again.update_values((), [("/a", "cpu.max"), ("/never", "cpu.max")])
    last = Journal(tmp_path / "j")
    assert (last.originals, last.values) == ({}, {("/a", "memory.max"): MEMORY})


def test_a_journal_of_cpusets_alone_is_read(tmp_path: Path) -> None:
    (tmp_path / "j").write_text(
        '{"group":"/a","cpus":"0-3"}\n{"group":"/b","cpus":"","note":"inherited"}\n'
    )
    journal = Journal(tmp_path / "j")
    assert (journal.originals, journal.values) == ({"/a": A, "/b": B}, {})
    assert journal.problems == ()


def test_every_line_that_can_be_read_counts(tmp_path: Path) -> None:
    """With fields that are unknown, lines of another form, and a torn one."""
    lines = (
        '{"group":"/a","cpus":"0-3","later":[1]}',
        '{"group":"/a","file":"cpu.max","value":"max 100000","later":1}',
        '{"later":{"group":"/c"}}',
        '{"group":"/d","cpus":["0-3"]}',
        '{"group":"/e","cp',
    )
    (tmp_path / "j").write_text("\n".join(lines[:2]) + "\n")
    assert Journal(tmp_path / "j").problems == ()
    (tmp_path / "j").write_text("\n".join(lines))
    journal = Journal(tmp_path / "j")
    assert (journal.originals, list(journal.values.values())) == ({"/a": A}, [QUOTA])
    assert "3 lines unreadable" in "; ".join(journal.problems)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (b'{"group":"/b","cpus":"', "line 2"),
        (b"\xff\xfe\x00", "line 2"),
        pytest.param(b"[" * 100_000, "line 2", id="deeply nested"),
        (b'{"group":"/b","cpus":"x"}', "'/b': CPU list 'x'"),
        (b'{"group":"b","cpus":"1"}', "'b' is not a cgroup path"),
        (b'{"group":"/b"}', "`cpus`"),
        (b'{"group":"/b","file":"cpu.max"}', "`value`"),
        (b'{"group":"b","file":"cpu.max","value":"1"}', "'b' is not a cgroup path"),
        (b'{"group":"/../b","cpus":"1"}', "'/../b' is not a cgroup path"),
        (b'{"group":"/b/..","cpus":"1"}', "'/b/..' is not a cgroup path"),
        (b'{"group":"/b\\u0000","cpus":"1"}', "is not a cgroup path"),
        (b'{"group":"/..","file":"cpu.max","value":"1"}', "'/..' is not a cgroup path"),
        (b'{"group":"/b","file":"../x","value":"1"}', "'../x' is not a file of a cgroup"),
        (b'{"group":"/b","file":"io.max /","value":"1"}', "'io.max /' is not a file of a cgroup"),
        (b'["/b"]', "line 2"),
        (b"null\n\n7", "2 lines unreadable, 1 groups kept"),
    ],
)
def test_a_damaged_journal_is_kept_as_a_copy_and_its_valid_lines_are_used(
    tmp_path: Path, damage: bytes, reason: str
) -> None:
    path = tmp_path / "j"
    data = b'{"group":"/a","cpus":"0-3"}\n' + damage
    path.write_bytes(data)
    journal = Journal(path)
    assert journal.originals == {"/a": A}
    problems = "; ".join(journal.problems)
    assert str(path) in problems
    assert "'j.broken'" in problems
    assert reason in problems
    assert (tmp_path / "j.broken").read_bytes() == data
    again = Journal(path)
    assert (again.originals, again.problems) == ({"/a": A}, ())


def test_a_folder_in_place_of_the_journal_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    journal = Journal(tmp_path / "j")
    assert "cannot be read (Is a directory)" in journal.problems[0]
    journal.update([A])
    assert Journal(tmp_path / "j").originals == {"/a": A}
    assert (tmp_path / "j.broken").is_dir()


def test_a_failed_write_is_an_error_and_keeps_the_entries(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file/j")
    assert "Not a directory" in journal.problems[0]
    with pytest.raises(JournalError, match=r"cannot write '.*file/j'"):
        journal.update([A])
    assert journal.originals == {}


def test_another_process_reads_the_valid_entries_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert peek(path) == ({}, {})
    value = OriginalValue("/g", "cpu.shares", "2")
    journal = Journal(path)
    journal.update([Original("/g", "0-1")])
    journal.update_values([value])
    path.write_bytes(path.read_bytes() + b"broken\n")
    assert peek(path) == ({"/g": Original("/g", "0-1")}, {("/g", "cpu.shares"): value})
    assert [each.name for each in tmp_path.iterdir()] == ["journal"]

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.host import files
from agent.host.locks import LockedError
from agent.scheduler.leader.candidate import IdentityFile


def open_identity(folder: Path, new: str) -> IdentityFile:
    return IdentityFile(str(folder), new)


def leave_identity(folder: Path, identity: str = "first") -> None:
    """Leaves the file of a process that led with this identity and has ended."""
    file = open_identity(folder, identity)
    file.keep()
    file.close()


def test_the_next_process_of_a_leader_has_its_identity(tmp_path: Path) -> None:
    leave_identity(tmp_path / "made")
    second = open_identity(tmp_path / "made", "second")
    assert (second.identity, second.reused) == ("first", True)
    second.keep()
    second.close()
    assert open_identity(tmp_path / "made", "third").identity == "first"


def test_a_process_that_never_led_leaves_no_identity(tmp_path: Path) -> None:
    leave_identity(tmp_path)
    open_identity(tmp_path, "second").close()
    third = open_identity(tmp_path, "third")
    assert (third.identity, third.reused) == ("third", False)


def test_no_other_process_has_the_identity_of_a_running_one(tmp_path: Path) -> None:
    first = open_identity(tmp_path, "first")
    first.keep()
    with pytest.raises(LockedError, match="identity is locked by another process"):
        open_identity(tmp_path, "second")
    first.close()
    assert open_identity(tmp_path, "second").identity == "first"


def removed(folder: Path) -> Path:
    shutil.rmtree(folder)
    return folder


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


def replaced(folder: Path) -> Path:
    """Replaces the file as an editor or a restore from a backup does."""
    shutil.copy(folder / "identity", folder / "new")
    os.replace(folder / "new", folder / "identity")
    return folder


def truncated(folder: Path) -> Path:
    os.truncate(folder / "identity", 20)
    return folder


def empty(folder: Path) -> Path:
    text = (folder / "identity").read_text()
    (folder / "identity").write_text(text.replace("first", ""))
    return folder


@pytest.mark.parametrize("change", [removed, copied, replaced, truncated, empty])
def test_only_the_unchanged_locked_file_has_an_identity(
    tmp_path: Path, change: Callable[[Path], Path]
) -> None:
    leave_identity(tmp_path / "folder")
    file = open_identity(change(tmp_path / "folder"), "second")
    assert (file.identity, file.reused) == ("second", False)


def test_a_file_that_replaces_that_of_a_running_process_has_no_identity(
    tmp_path: Path,
) -> None:
    first = open_identity(tmp_path / "folder", "first")
    first.keep()
    second = open_identity(replaced(tmp_path / "folder"), "second")
    assert second.identity == "second"
    second.close()
    first.close()


@pytest.mark.parametrize("boot_id", ["another", ""])
def test_after_a_boot_the_identity_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str
) -> None:
    leave_identity(tmp_path)
    monkeypatch.setattr(files, "boot_id", lambda: boot_id)
    assert open_identity(tmp_path, "second").identity == "second"


def test_without_a_boot_id_the_identity_is_always_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "boot_id", lambda: "")
    leave_identity(tmp_path)
    assert open_identity(tmp_path, "second").identity == "second"


def test_an_identity_that_was_given_up_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = open_identity(tmp_path, "first")
    file.keep()
    file.give_up("disk full")
    file.give_up("disk full")
    file.keep()
    file.close()
    assert open_identity(tmp_path, "second").identity == "second"
    (line,) = caplog.messages
    assert "identity: disk full; if this process is killed, the next one waits" in line


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        open_identity(tmp_path / "file" / "folder", "first")
    (tmp_path / "identity").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="identity"):
        open_identity(tmp_path, "first")

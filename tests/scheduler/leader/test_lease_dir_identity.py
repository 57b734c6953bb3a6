from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.host import files
from agent.host.locks import LockedError
from agent.scheduler.leader.lease_dir import IdentityFile


def used(folder: Path, new: str) -> IdentityFile:
    return IdentityFile(str(folder), new)


def led(folder: Path, identity: str = "first") -> None:
    """A process has led with this identity, and is dead."""
    file = used(folder, identity)
    file.keep()
    file.close()


def test_the_process_that_follows_a_leader_has_its_identity(tmp_path: Path) -> None:
    led(tmp_path / "made")
    second = used(tmp_path / "made", "second")
    assert (second.identity, second.reused) == ("first", True)
    second.keep()
    second.close()
    assert used(tmp_path / "made", "third").identity == "first"


def test_a_process_that_could_not_answer_leaves_no_identity(tmp_path: Path) -> None:
    led(tmp_path)
    used(tmp_path, "second").close()
    third = used(tmp_path, "third")
    assert (third.identity, third.reused) == ("third", False)


def test_while_a_process_lives_no_other_has_its_identity(tmp_path: Path) -> None:
    first = used(tmp_path, "first")
    first.keep()
    with pytest.raises(LockedError, match="identity is locked by another process"):
        used(tmp_path, "second")
    first.close()
    assert used(tmp_path, "second").identity == "first"


def test_the_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from agent.scheduler.leader.lease_dir import IdentityFile; "
        "file = IdentityFile(sys.argv[1], 'first'); file.keep(); print('kept', flush=True); "
        "time.sleep(600)"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(LockedError):
            used(tmp_path, "second")
        process.kill()
        process.wait()
    assert used(tmp_path, "second").identity == "first"


def removed(folder: Path) -> Path:
    shutil.rmtree(folder)
    return folder


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


def replaced(folder: Path) -> Path:
    """As by an editor, or a restore from a backup."""
    shutil.copy(folder / "identity", folder / "new")
    os.replace(folder / "new", folder / "identity")
    return folder


def cut(folder: Path) -> Path:
    os.truncate(folder / "identity", 20)
    return folder


def empty(folder: Path) -> Path:
    text = (folder / "identity").read_text()
    (folder / "identity").write_text(text.replace("first", ""))
    return folder


@pytest.mark.parametrize("change", [removed, copied, replaced, cut, empty])
def test_only_the_very_file_that_was_locked_has_an_identity(
    tmp_path: Path, change: Callable[[Path], Path]
) -> None:
    led(tmp_path / "folder")
    file = used(change(tmp_path / "folder"), "second")
    assert (file.identity, file.reused) == ("second", False)


def test_a_file_that_is_replaced_under_a_living_process_does_not_have_its_identity(
    tmp_path: Path,
) -> None:
    first = used(tmp_path / "folder", "first")
    first.keep()
    second = used(replaced(tmp_path / "folder"), "second")
    assert second.identity == "second"
    second.close()
    first.close()


@pytest.mark.parametrize("boot_id", ["another", ""])
def test_after_a_boot_the_identity_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str
) -> None:
    led(tmp_path)
    monkeypatch.setattr(files, "boot_id", lambda: boot_id)
    assert used(tmp_path, "second").identity == "second"


def test_without_a_boot_id_the_identity_is_always_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "boot_id", lambda: "")
    led(tmp_path)
    assert used(tmp_path, "second").identity == "second"


def test_an_identity_that_was_given_up_is_not_kept_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = used(tmp_path, "first")
    file.keep()
    file.give_up("disk full")
    file.give_up("disk full")
    file.keep()
    file.close()
    assert used(tmp_path, "second").identity == "second"
    (line,) = caplog.messages
    assert "identity: disk full; if this process is killed, the next one waits" in line


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        used(tmp_path / "file" / "folder", "first")
    (tmp_path / "identity").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="identity"):
        used(tmp_path, "first")

"""The archive of `topolet doctor --bundle`: what a maintainer needs of a node, without secrets.

Every file is made from decoded values, and has only the fields that Topolet knows: environment
variables, labels and annotations of other components are left out. In logs, which can't be decoded,
text that looks like a secret is replaced.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import io
import json
import os
import platform
import re
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tarfile import TarError
from typing import Any, Final

import msgspec

from agent import VERSION
from agent.cgroup.journal import Original, OriginalValue
from agent.cli import options
from agent.discover import cpus
from agent.discover.sysfs import DiscoveryError
from agent.host import files
from agent.host.files import reason
from agent.kube.auth import SERVICE_ACCOUNT
from agent.kubelet import state_folder
from agent.model import snapshot as snapshots
from agent.model.settings.agent import KubeletStateSettings
from agent.model.settings.options import SettingsError
from agent.model.snapshot import SnapshotError
from agent.node import doctor, own_processes
from agent.node.doctor import Examination
from agent.telemetry import audit

MAX_FILE_BYTES: Final = 1 << 20
"""The largest size of a file; of a longer one only the end is kept."""
LOG_LINES: Final = 2000
MAX_ARCHIVE_BYTES: Final = 32 << 20
"""The largest size of an archive of a node, packed and unpacked."""
_MAX_MEMBERS: Final = 64
_MEMBER: Final = re.compile(r"(?:logs/)?[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
MAX_LOGS: Final = 8
_METRICS: Final = ("topolet_", "process_")
_MAX_RECORDS: Final = 3000
"""The number of records of the audit trail, the newest ones."""
_CGROUP_VALUE: Final = re.compile(r"[\w,.\- ]{0,200}")
"""The content of a file of a cgroup."""
_LEFT_OUT: Final = "<left out>"
_SECRETS: Final = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"),
    re.compile(r"(?i)(?<=bearer )\S+|(?<=basic )[\w+/=]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(
        r"(?i)\b[\w.-]*(?:token|passw|secret|api-?_?key|credential)[\w.-]*"
        r"[\"'\\]*\s*[=:]\s*[\"'\\]*[^\s\"',;&\\]+"
    ),
)


def archive_of(
    settings: KubeletStateSettings, examined: Examination, text: str, config: str, namespace: str
) -> bytes:
    """The archive (tar.gz). Its file `unread.json` says what could not be read, and why.

    `text`: the examination as the command prints it.
    `config`: the path of the file of options, "" if there is none.
    `namespace`: Topolet's, unless the service account of a pod says otherwise."""
    files: dict[str, bytes] = {
        "doctor.json": _json(doctor.body(examined)),
        "doctor.txt": text.encode(),
    }
    unread: dict[str, str] = {}
    proc = os.path.join(settings.root, "proc")
    running = tuple(own_processes.running(proc))
    address = own_processes.address_of("agent", running, proc, settings.state_dir)
    files["about.json"] = _json(
        {
            "schema_version": 1,
            "topolet": VERSION,
            "python": platform.python_version(),
            "kernel": os.uname().release,
            "machine": os.uname().machine,
            "settings": msgspec.to_builtins(settings),
            "programs": msgspec.to_builtins(running),
        }
    )
    for name, read in (
        ("config.json", lambda: _config(config)),
        ("topology.json", lambda: msgspec.to_builtins(cpus.read(settings.root), enc_hook=str)),
        (snapshots.FILE, lambda: _snapshot(settings.state_dir)),
        ("journal.json", lambda: _journal(settings.state_dir)),
        ("audit.json", lambda: _audit(settings.state_dir)),
        (
            "kubelet-state.json",
            lambda: state_folder.body(state_folder.read(settings.kubelet_dir)),
        ),
        ("metrics.json", lambda: _metrics(address)),
    ):
        try:
            files[name] = _json(read())
        except (OSError, ValueError, DiscoveryError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            unread[name] = f"{type(error).__name__}: {redacted(why)}"
    for path in _newest_logs(settings.root, _own_namespace(namespace)):
        try:
            log = _end_of(path).decode(errors="replace")
            files[f"logs/{'-'.join(Path(path).parts[-3:])}"] = redacted(log).encode()
        except OSError as error:
            unread[path] = str(error.strerror)
    if unread:
        files["unread.json"] = _json(unread)
    return _packed(files)


def _own_namespace(namespace: str) -> str:
    with contextlib.suppress(OSError, UnicodeError):
        return Path(SERVICE_ACCOUNT, "namespace").read_text().strip()
    return namespace


def _newest_logs(root: str, namespace: str) -> list[str]:
    """The logs of Topolet's pods. Only pods of its own namespace count: anybody may name a pod like
    one of them."""
    pods = os.path.join(glob.escape(root), "var/log/pods", f"{glob.escape(namespace)}_topolet-*")
    paths: list[tuple[float, str]] = []
    for path in glob.iglob(os.path.join(pods, "*", "*.log")):
        with contextlib.suppress(OSError):
            paths.append((os.stat(path).st_mtime, path))
    return sorted(path for _, path in sorted(paths)[-MAX_LOGS:])


def _end_of(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_FILE_BYTES))
        return file.read(MAX_FILE_BYTES)


def with_logs(archive: bytes, logs: Mapping[str, str]) -> bytes:
    """The archive of a node with these logs, by file name. The node may be hostile: every member
    has to be a file with a name as `archive_of` gives it. Raises OSError and, for another archive,
    TarError."""
    files: dict[str, bytes] = {}
    with gzip.GzipFile(fileobj=io.BytesIO(archive)) as compressed:
        try:
            unpacked = compressed.read(MAX_ARCHIVE_BYTES + 1)
        except (EOFError, zlib.error) as error:
            raise TarError(f"the node's archive is damaged: {error}") from None
    if len(unpacked) > MAX_ARCHIVE_BYTES:
        raise TarError(f"the node's archive has more than {MAX_ARCHIVE_BYTES} bytes")
    try:
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as packed:
            for member in packed:
                name = member.name.removeprefix(f"{_FOLDER}/")
                content = packed.extractfile(member) if member.isreg() else None
                if content is None or not _MEMBER.fullmatch(name) or len(files) == _MAX_MEMBERS:
                    raise TarError(f"the node's archive has an unexpected member: {name!r:.80}")
                files[name] = content.read(MAX_FILE_BYTES)
    except (ValueError, OverflowError) as error:  # of the numbers in some headers
        raise TarError(f"the node's archive is damaged: {error!s:.80}") from None
    return _packed(files | {f"logs/{name}": redacted(text).encode() for name, text in logs.items()})


def redacted(text: str) -> str:
    """The text, in which everything that looks like a key, token or password is replaced."""
    for pattern in _SECRETS:
        text = pattern.sub(_LEFT_OUT, text)
    return text


_FOLDER: Final = "topolet-doctor"


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for name, content in sorted(files.items()):
            kept = content[-MAX_FILE_BYTES:]
            member = tarfile.TarInfo(f"{_FOLDER}/{name}")
            member.size = len(kept)
            archive.addfile(member, io.BytesIO(kept))
    return packed.getvalue()


def _json(value: Any) -> bytes:
    # The answers of device plugins (bytes) contain environment variables, which may be secrets.
    return json.dumps(value, indent=1, default=lambda raw: f"{len(raw)} bytes").encode() + b"\n"


def _config(path: str) -> dict[str, Any]:
    """The options of the file, without names that are not options.

    Raises ValueError."""
    if not path:
        return {}
    try:
        raw = options.read(path)
    except SettingsError as error:
        raise ValueError(f"{path} can't be read") from error
    return {name: value for name, value in raw.items() if name in _option_names()}


def _option_names() -> set[str]:
    return {
        name for kind in own_processes.COMMANDS.values() for name in kind.__struct_encode_fields__
    }


def _snapshot(state_dir: str) -> Any:
    raw = files.read(os.path.join(state_dir, snapshots.FILE), snapshots.MAX_BYTES)
    try:
        return json.loads(snapshots.encode(snapshots.decode(raw)))
    except SnapshotError:
        # The message of the error may quote the text.
        raise ValueError(f"the {len(raw)} bytes are not a valid snapshot") from None


def _journal(state_dir: str) -> list[Any]:
    """The entries of the lines that can be decoded. The agent's own reader would repair the
    file."""
    entries: list[Any] = []
    for line in (Path(state_dir) / "journal").read_bytes().splitlines():
        for kind in (OriginalValue, Original):
            with contextlib.suppress(msgspec.MsgspecError):
                entries.append(msgspec.to_builtins(msgspec.json.decode(line, type=kind)))
                break
    return [
        entry
        for entry in entries
        if _CGROUP_VALUE.fullmatch(entry.get("value", entry.get("cpus", "")))
    ]


def _metrics(address: tuple[str, int] | None) -> list[Any]:
    """The agent's own series, and those of its process.

    Raises ValueError."""
    page = own_processes.page(address) if address else None
    if page is None:
        raise ValueError("no agent answers on its HTTP port")
    series = [series for series in page.series if series.name.startswith(_METRICS)]
    return [msgspec.to_builtins(one) for one in series]


def _audit(state_dir: str) -> list[Any]:
    records = audit.read(state_dir).records[-_MAX_RECORDS:]
    return [msgspec.to_builtins(each) for each in records]

"""Standard output to any target: any encoding, a reader that leaves, a full disk."""

from __future__ import annotations

import os
import sys


def unwritten(command: str, error: OSError) -> int:
    """The exit code: a reader that closes early (`head`) is not a fault; a full disk is."""
    with open(os.devnull, "wb") as nowhere:  # for what Python flushes when it ends
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"topolet {command}: standard output: {error.strerror}", file=sys.stderr)
    return 1


def encodable(text: str) -> str:
    """The text, with plain characters for the frames where the terminal has no others."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.translate(str.maketrans("╭╮╰╯│─·", "++++|--"))
        return plain.encode(encoding, "replace").decode(encoding)
    return text

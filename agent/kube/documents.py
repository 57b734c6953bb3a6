"""YAML files of others."""

from __future__ import annotations

from typing import Any


class DocumentError(ValueError):
    """A text that is no YAML; the message says where."""


def read(path: str) -> Any:
    """The plain values in a file of one document. Raises OSError, DocumentError."""
    import yaml  # a megabyte that an agent beside no kubelet does without

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with open(path, "rb") as file:
        try:
            return yaml.load(file, loader)
        except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
            raise DocumentError(str(error)) from error

"""YAML files of others."""

from __future__ import annotations

from typing import Any

import yaml


class DocumentError(ValueError):
    """A text that is no YAML; the message says where."""


def read(path: str) -> Any:
    """The plain values in a file of one document. Raises OSError, DocumentError."""
    with open(path, "rb") as file:
        try:
            return yaml.load(file, _Loader)
        except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
            raise DocumentError(str(error)) from error


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

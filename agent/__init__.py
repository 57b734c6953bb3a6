"""Topolet: a node resource agent for Kubernetes."""

VERSION = "0.1.0"
WHEEL = f"dist/topolet-{VERSION}-py3-none-any.whl"
"""What `make release` writes. A package of this name in an index is not ours."""

"""Checks of the structure of `agent` from its text: `python -m tests.structure`."""

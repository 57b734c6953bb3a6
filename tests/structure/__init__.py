"""Figures of the structure of `agent`, and their limits: `python -m tests.structure`.

High figures mean that a reader has to open many files for one idea. A limit stops a figure from
growing; a lower figure is no improvement if the code is harder to read.
"""

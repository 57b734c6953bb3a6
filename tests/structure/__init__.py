"""Figures of the structure of `agent`, and their limits: `python -m tests.structure`.

They show where a reader has to open many files for one idea. A limit stops a figure from growing; a
lower figure is worth nothing if the code is harder to read.
"""

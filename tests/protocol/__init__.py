"""The protocol of admission as a model, which an explorer checks: `python -m tests.protocol`."""

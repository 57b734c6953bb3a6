"""Batch beside services: each second, between two passes, the agent computes what the strategies in
force want of the cgroups of pods (one module a feature), writes what differs, and gives back what
they want no more (`writer`).

The values that it has replaced are in the journal of the agent, so that also an agent that starts
later without strategies gives them back, as `topolet restore` does."""

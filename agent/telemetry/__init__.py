"""Metrics, logs and the health of the processes.

The agent and the scheduler use prometheus-client (`metrics`, `schedulermetrics`). The frontends on
the host write the text format themselves (`frontend_metrics`), which saves memory. `health` is the
state of the agent's passes. All processes log in logfmt on standard error (`logs`).
"""

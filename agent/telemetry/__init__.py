"""Metrics and logs of the processes.

The agent and the scheduler use prometheus-client (`metrics`, `schedulermetrics`). The frontends on
the host write the text format themselves (`frontend_metrics`), which saves memory. All processes
log in logfmt on standard error (`logs`).
"""

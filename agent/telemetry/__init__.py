"""Metrics, logs and the audit trail of the processes.

Each process declares its metrics as `series.Series`, which docs/metrics.md lists. The agent and the
scheduler use prometheus-client (`metrics`, `schedulermetrics`). The frontends on the host write the
text format themselves (`frontend_metrics`), which saves memory. All processes log on standard
error, in logfmt or JSON (`logs`), and append what they decide or change to files (`audit`).
"""

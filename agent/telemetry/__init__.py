"""Metrics, logs and the audit trail of the processes.

Each process declares its metrics as `exposition.Series`, which docs/monitoring.md lists. `metrics`
has those of the agent, `schedulermetrics` of the scheduler and `frontend_metrics` those that the
frontends have in common; `exposition` writes them in the Prometheus text format. All processes log
on standard error, in logfmt or JSON (`logs`), and append what they decide or change to files
(`audit`).
"""

"""Metrics, logs and the HTTP ports of the processes.

The agent and the scheduler use prometheus-client (`metrics`, `schedulermetrics`), and the agent a
thread for each request (`http`). The frontends on the host write the text format themselves
(`frontend_metrics`) and serve it from their epoll loop (`page`), which saves memory. All processes
log in logfmt on standard error (`logs`).
"""

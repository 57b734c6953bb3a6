"""A real kube-scheduler for the API server of tests, and the objects that it schedules."""

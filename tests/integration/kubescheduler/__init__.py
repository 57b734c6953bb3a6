"""A real kube-scheduler of an API server of tests, and the objects that it schedules."""

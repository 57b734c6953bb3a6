"""Interfaces to Linux, without knowledge of Kubernetes: files below a root and their atomic
replacement, locks, listening sockets, the kernel's events, processes, one epoll loop, and how a
daemon starts and ends."""

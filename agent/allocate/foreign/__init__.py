"""Devices that others than the scheduler gave to pods: a kubelet's plugins, claims, containers."""

"""Devices and CPUs that pods got without Topolet's scheduler: from device plugins, DRA drivers, or
because containers name devices themselves.

`reported_devices` collects what the kubelet and the containers report, as names. `names` resolves
each name to a device of the node, by one table of patterns. `holdings` decides which pod holds
which device: of several sources for one device and container it takes the best, and an allocation
of a scheduler replaces what the kubelet gave. It also decides which two holders may share one
device."""

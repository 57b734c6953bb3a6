"""Exclusive CPUs on a node without Topolet's scheduler, by the kubelet's rules for Guaranteed pods.

`claim` has the values: each container that requests whole CPUs is a claim. `policy` decides which
container owns which CPUs: owners keep their CPUs, resized containers grow or shrink, new containers
get CPUs in the order of age, and under the policy `dynamic` containers move to better CPUs.
The result has the CPUs of each pod, why a container must wait, and
the shared pool that is left.
"""

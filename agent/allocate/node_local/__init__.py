"""Exclusive CPUs on a node without our scheduler, by the kubelet's rules for Guaranteed pods.

`claim` has the values: each container that requests whole CPUs is a claim. `policy` decides in one
pass who owns which CPUs: owners keep theirs, resized containers grow or shrink, newcomers are
served by age, and under the policy `dynamic` containers move to better CPUs. `fit` compares CPUs
and chooses them. The result says for each pod its CPUs and why a container must wait, and what is
left as the shared pool.
"""

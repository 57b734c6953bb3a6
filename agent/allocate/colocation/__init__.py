"""Batch beside services: what the cgroups of pods shall have, from the values of one moment.

Each strategy is a pure function, whose result holds until the next moment. What it does not want
any more, the agent gives back: it has journalled the original values. The values of strategies come
from the NodeSLO of the node, from the agent's own configuration and from annotations of pods
(`usage.strategies`)."""

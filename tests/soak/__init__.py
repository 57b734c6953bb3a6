"""A long day on a whole cluster: `python -m tests.soak --hours N`.

Pods come and go by all ways to CPUs while things go wrong at random, and nothing of Topolet may
grow meanwhile. `day` lets it happen on the cluster of `tests.cluster`, by `tests.cluster.churn`;
`probe` measures creations of containers; `report` decides about what was seen."""

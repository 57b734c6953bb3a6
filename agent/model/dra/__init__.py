"""ResourceClaims on CPUs as values: what a scheduler allocated of the driver `cpu.topolet.io`, and
the parameters of the claim."""

"""What else than other pods leaves the CPUs of owners: a module for each feature."""

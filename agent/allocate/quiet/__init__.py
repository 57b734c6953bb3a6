"""What else than pods leaves the CPUs of owners: what shall hold, from the values of one moment."""

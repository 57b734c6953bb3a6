"""The options of every process, with unit, bounds, default and description: one struct a process.
The flags, the keys of the settings file and the options in `docs/configuration.md` are derived
from the structs."""

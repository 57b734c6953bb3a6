"""Which container sees which of the devices that its pod was given."""

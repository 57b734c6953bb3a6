"""The agent's own CRI client: `client` makes calls and returns values, `events` follows the
runtime's container events."""

"""Where a command runs: one interface, one implementation for each kind of place."""

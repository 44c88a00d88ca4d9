"""The same job in other simulators: one small program each, with its own environment."""

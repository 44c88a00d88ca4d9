"""The same job in other simulators: one small program each, in an environment of its own."""

"""The config: its schema, and how a node with ``_target_`` becomes an object."""

"""Persistent state: each client's own state, checkpoints and the run's folder."""

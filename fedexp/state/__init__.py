"""What is kept: each client's own state, checkpoints, the run's folder."""

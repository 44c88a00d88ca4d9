"""The commands: what Hydra needs to start a run, and how a command begins and ends."""

"""The commands: Hydra's callbacks and resolvers, and the beginning and end of a command."""

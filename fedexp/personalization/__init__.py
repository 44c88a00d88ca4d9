"""Personalizations: which weights are shared, how a client trains, what its personal model is."""

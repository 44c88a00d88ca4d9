"""Losses: scalar functions of one batch's forward pass."""

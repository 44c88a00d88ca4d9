"""Losses: each maps the outputs of a batch's forward pass to a scalar."""

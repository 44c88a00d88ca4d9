"""Samplers: which clients take part in a round."""

"""Comparing with published tables: their numbers, partitions and sweeps."""

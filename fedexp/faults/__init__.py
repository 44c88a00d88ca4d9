"""Faults on purpose: clients that vanish, straggle, break or lie."""

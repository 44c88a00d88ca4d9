"""Injected faults, and the quarantine of updates that are not finite."""

"""Contests: every method is tuned on validation data with equally many trials, then compared."""

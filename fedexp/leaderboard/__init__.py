"""Contests: every method is tuned on validation data with the same trials, then compared."""

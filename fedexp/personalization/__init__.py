"""Personalizations: which weights are shared, how clients train, what their personal models are."""

"""Scores of models on test samples, computed once for all measures that use them."""

"""Personalizations: shared weights, phases of local training, personal models."""

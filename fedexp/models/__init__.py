"""Backbones, which map inputs to features z [B, d]."""

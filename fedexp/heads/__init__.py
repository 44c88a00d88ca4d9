"""Heads: layers that turn features z [B, d] into logits [B, C]."""

"""Local gradients: how a local step computes its gradient, at which weights and samples."""

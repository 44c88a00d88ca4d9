"""Local gradients: at which weights, and on which samples, a local step takes its gradient."""

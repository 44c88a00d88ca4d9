"""Reports over runs and sweeps: tables, curves, and the comparison with the papers."""

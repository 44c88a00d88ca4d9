"""A trained model outside the laboratory: loaded from a run, or exported to a file."""

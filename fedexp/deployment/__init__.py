"""Using a trained model after its run: loaded from the run's folder, or exported to a file."""

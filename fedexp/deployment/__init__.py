"""Use a trained model after its run: load it from the run's folder, or export it to a file."""

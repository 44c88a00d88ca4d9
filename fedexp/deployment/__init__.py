"""Use a trained model after its run: load the model from the run's folder, or export it."""

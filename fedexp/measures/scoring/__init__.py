"""Forward passes that all measures share."""

"""From raw inputs, as they are outside the laboratory, to a model's inputs; one rule a file."""

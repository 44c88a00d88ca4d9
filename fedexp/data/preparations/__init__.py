"""Rules that turn raw inputs, such as image files, into a model's inputs; one rule in each file."""

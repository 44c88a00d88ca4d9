"""What pictures are made of; knows arrays and Matplotlib, and no other room of this package."""

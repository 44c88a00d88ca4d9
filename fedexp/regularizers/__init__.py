"""Regularizers: scalar functions of the parameters that are added to the loss."""

"""Figures of arrays, drawn with Matplotlib. Imports no other subpackage."""

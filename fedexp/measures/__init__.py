"""Measures: what is looked at, one idea a file."""

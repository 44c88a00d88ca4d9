"""Measures: metrics, tables and figures, one idea a file."""

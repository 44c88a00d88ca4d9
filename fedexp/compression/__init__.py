"""Compression of the weights that travel, in both directions.

A sender encodes the difference between its weights and the weights that the receiver has. The
receiver decodes it. The bytes of the encoded form are counted.
"""

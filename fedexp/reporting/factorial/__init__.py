"""Factorial experiments over the sockets: their design, and the effects of their factors."""

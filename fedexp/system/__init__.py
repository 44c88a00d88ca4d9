"""Simulated time: the clients' devices, and the seconds that their turns and rounds take."""

"""Allowed combinations: components declare traits, needs and conflicts; one check compares them."""

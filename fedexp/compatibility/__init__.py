"""What can be combined: components declare traits, needs and conflicts; one check compares them."""

"""A run whose clients are nodes of a Flower federation instead of a simulation.

The server runs the same round loop as in a simulation. Its engine sends each client's message to
the client's node, and takes the reply as the client's update. The node takes the client's turn
with the configured engine. Only this package imports flwr.
"""

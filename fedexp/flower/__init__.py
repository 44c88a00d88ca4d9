"""A run whose clients are nodes of a Flower federation instead of a simulation.

The server half is the round loop as it is, with an engine that sends each message to the node of
its client and takes the reply as the client's update. The client half takes one turn with the
configured engine. Only this package imports flwr.
"""

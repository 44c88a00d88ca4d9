"""When clients get the global model, and when the server steps."""

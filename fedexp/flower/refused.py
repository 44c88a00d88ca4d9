"""The error of a message that is not accepted."""


class RefusedError(ValueError):
    """A message from another app, malformed or with wrong shapes; the error is one line."""

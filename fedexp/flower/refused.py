"""The error of a message that is not accepted."""


class RefusedError(ValueError):
    """A message that does not fit: of another app, malformed, or of the wrong shape. One line."""

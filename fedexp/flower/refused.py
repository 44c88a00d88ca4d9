"""The error of a message that is not accepted."""


class RefusedError(ValueError):
    """A message is from another app, is malformed, has wrong shapes or reports a refusal.

    The error's text is one line.
    """

"""Keeps log lines back that somebody else logs, or that nobody needs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_only(name: str) -> Iterator[None]:
    """Let the logger ``name``, and the loggers below it, log nothing but errors in this block."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)

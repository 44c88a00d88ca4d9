"""Imported by the process from which ``command_line`` forks: its forks compose configs quickly."""

from support.federations import of_options
from support.quick_hydra import quick_hydra

_BLOCK = quick_hydra()  # kept, since the block ends with this object
_BLOCK.__enter__()
of_options(())  # reads the files that most configs need

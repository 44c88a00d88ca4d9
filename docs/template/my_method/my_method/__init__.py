"""Options for fedexp: ``loss=poly``."""

"""Options for fedexp: ``loss=focal``."""

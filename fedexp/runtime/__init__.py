"""One run from its checked config to its folder, and what ends it early."""

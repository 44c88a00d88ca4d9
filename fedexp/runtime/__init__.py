"""One run, from its checked config to its results, and the reasons that end it early."""

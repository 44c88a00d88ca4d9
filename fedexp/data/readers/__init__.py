"""The readers of datasets, which ``conf/data`` names."""

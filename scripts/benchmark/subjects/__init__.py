"""The subjects of ``scripts/bench.py``: what each measures, its options, and the measurement."""

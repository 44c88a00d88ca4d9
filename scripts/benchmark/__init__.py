"""The parts of ``scripts/bench.py``, which other scripts share.

``jobs``: the work and the ways to do it. ``rounds``: one round of it, by fedexp or by hand.
``comparison``: the ways side by side. ``growth``: large populations and cohorts. ``profiling``: the
functions that take a way's time. ``process``: a process of its own, its memory and the machine.
"""

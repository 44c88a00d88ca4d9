"""What ``scripts/bench.py`` measures.

``jobs``: the work and the ways to do it. ``rounds``: one round of it, by fedexp or by hand.
``comparison``: the ways side by side. ``growth``: large populations and cohorts. ``profiling``:
where one way's time goes.
"""

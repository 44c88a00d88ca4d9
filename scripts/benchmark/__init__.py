"""The parts of ``scripts/bench.py``, which other scripts share.

``subjects``: a module for each subject of the command. ``jobs``: the jobs and the contenders.
``rounds``: one round of a job, by fedexp or by a raw loop. ``comparison``: times of the contenders.
``growth``: large populations and cohorts. ``profiling``: the functions that take a contender's
time. ``process``: new processes, memory and the machine. ``results``: the files of the numbers.
"""

"""The steps of ``scripts/bench_gpu.py``.

``steps``: their list. ``result_file``: where a step's result goes. ``place``: where a step runs.
``presets``: every preset against the CPU. ``rounds``: seconds, memory and waits of a round.
``ways``: ranks, resume and the options of an engine. ``cells``: the papers' cells.
"""

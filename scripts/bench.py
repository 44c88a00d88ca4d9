"""Measures the speed or the memory of one subject.

    python scripts/bench.py SUBJECT [OPTION ...]

``python scripts/bench.py`` lists the subjects; ``python scripts/bench.py SUBJECT --help`` has the
options of one. Each subject is a module of ``benchmark/subjects``, whose docstring says what is
measured and how.
"""

import argparse
import sys
from importlib import import_module

SUBJECTS = {
    "rounds": "a round with each engine, compared with a raw PyTorch loop, and its growth",
    "command": "CPU seconds of the default experiment, compared with another tree",
    "engines": "a round with engine=vectorized, compared with engine=serial",
    "evaluation": "scoring personal models, compared with a plain loop over them",
    "peers": "a round in other simulators, compared with fedexp and a raw PyTorch loop",
    "population": "a million clients: set-up, memory, rounds, a checkpoint and its resume",
    "report": "fedexp-report, for several numbers of runs",
    "samplers": "choosing a cohort in a large population",
    "store": "keeping clients' tensors on disk",
    "threads": "a run for each engine.threads, alone and beside another program",
    "trees": "a round of this tree, compared with a round of another tree",
}
"""Module of ``benchmark.subjects`` -> what it measures."""


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in SUBJECTS:
        listed = "\n".join(f"  {subject:<12}{about}" for subject, about in SUBJECTS.items())
        sys.exit(
            f"python scripts/bench.py SUBJECT [OPTION ...], with one of the subjects\n{listed}"
        )
    subject = import_module(f"benchmark.subjects.{name}")
    parser = argparse.ArgumentParser(
        f"bench.py {name}",
        description=subject.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subject.add_options(parser)
    subject.main(parser.parse_args(sys.argv[2:]))


if __name__ == "__main__":
    main()

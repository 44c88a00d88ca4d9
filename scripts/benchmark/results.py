"""Where the numbers of the benchmarks are kept, and the options that several of them share."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1]
RESULTS = SCRIPTS / "results"


def read(name: str) -> Any:
    """The numbers in ``scripts/results/NAME.json``; an empty dict if there are none yet."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(name: str, found: Any) -> None:
    """Write the numbers to ``scripts/results/NAME.json``."""
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def add_images(parser: argparse.ArgumentParser) -> None:
    """The option ``--images``: a folder of CIFAR-10 as images (train/<class>/*, test/<class>/*)."""
    parser.add_argument("--images", default=os.environ.get("FEDEXP_CIFAR10_IMAGES"), metavar="DIR")

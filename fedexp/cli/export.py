"""The ``fedexp-export`` command: a run's trained model as one file for plain PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fedexp.cli.parsers import home_path
from fedexp.cli.pipes import one_line_command


@one_line_command("fedexp-export")
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-export`` command; exit code 1 if the model cannot be exported."""
    options = _parse(arguments)
    from fedexp.deployment.export import export  # slow to import
    from fedexp.deployment.load import load

    predictor = load(options.run, options.model, options.client)
    export(predictor, options.to)
    print(f"{options.to}: the {predictor.name}; takes {predictor.takes}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-export",
        description="Writes a trained model to a file that torch.export.load reads without fedexp. "
        "The model takes raw inputs; its class names and a description of the inputs are in the "
        "file, as classes.json and inputs.json.",
    )
    add = parser.add_argument
    add("run", type=home_path, metavar="RUN", help="the run's folder")
    add("--to", type=home_path, metavar="FILE.pt2", required=True, help="the file to write")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--model",
        default="final",
        metavar="NAME",
        help="the global model: final (default), or best (in validation)",
    )
    which.add_argument(
        "--client", type=int, metavar="K", help="the personal model of this client instead"
    )
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    main()

"""The ``fedexp-flower`` command: a config as an app for Flower."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fedexp.cli.parsers import add_config_dir, home_path
from fedexp.cli.pipes import one_line_command


@one_line_command("fedexp-flower")
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-flower`` command; exit code 1 if the config cannot run on Flower."""
    options = _parse(arguments)
    from fedexp.cli.compose import composed  # slow to import
    from fedexp.config.schema import validate
    from fedexp.deployment.flower.app import App
    from fedexp.deployment.flower.bundle import write_bundle
    from fedexp.deployment.flower.check import without_simulated_measures
    from fedexp.deployment.flower.own_code import own_code

    overrides = ["engine=serial"]  # a node trains one client at a time
    if options.own_data:
        overrides.append("partition=iid")  # at a node, one client then gets all samples
    overrides += options.overrides
    unchecked, choices = composed(overrides, options.config_dir)
    config, left_out = without_simulated_measures(validate(unchecked))
    code = own_code(config)
    app = App(config, options.own_data, choices, overrides, code.digests)
    write_bundle(options.to, app, code, left_out)
    if left_out:
        print(f"left out, because they look at clients directly: {', '.join(left_out)}")
    if code.files:
        print(f"with your own code: {', '.join(sorted(code.files))}")
    if code.requirements:
        print(f"the server and every node also need: {' '.join(code.requirements)}")
    print(f"{options.to}: {options.to / 'README.md'} has the commands that start it")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-flower",
        description="Writes an app for Flower that runs a config of fedexp on the nodes of a "
        "federation. It takes all overrides of fedexp.",
    )
    add = parser.add_argument
    add("to", type=home_path, metavar="DIR", help="the folder to write; its name is the app's name")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="overrides, as for fedexp")
    add_config_dir(parser)
    add(
        "--own-data",
        action="store_true",
        help="each node reads its own dataset; without it, each node has the whole dataset and "
        "takes one client of the configured partition",
    )
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    main()

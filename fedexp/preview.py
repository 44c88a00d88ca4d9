"""The ``fedexp-partition`` command: each client's class counts, without training."""

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fedexp.cli import hydra_api
from fedexp.cli.command import exit_in_one_line, run_command
from fedexp.cli.compose import checked_once
from fedexp.cli.option_folders import config_folder
from fedexp.cli.pipes import quiet_in_a_pipe


@quiet_in_a_pipe()
def main() -> None:
    """The ``fedexp-partition`` command, which shows each client's class counts and trains nothing.

    It takes all overrides of ``fedexp``.
    """
    if not {"-h", "--help"}.isdisjoint(sys.argv):
        sys.argv.append("hydra/help=partition")
    run_command(job)


@hydra_api.command(config_folder())
def job(cfg: DictConfig) -> None:
    """Write ``partition.png`` and ``partition.csv``; print the table and the paths of the files."""
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    with exit_in_one_line(folder):
        found = checked_once(cfg, hydra_config)
        from rich.console import Console

        from fedexp.cli.partition_rows import print_partition
        from fedexp.runtime.early import check

        with found.named_in_errors():
            early = check(found.config)  # finds mistakes before Lightning is imported
            from fedexp.runtime.execution import draw_partition

            paths = draw_partition(found.config, folder, early)
        print_partition(paths[-1], Console(highlight=False, markup=False))
        for path in paths:
            print(path)


if __name__ == "__main__":
    main()

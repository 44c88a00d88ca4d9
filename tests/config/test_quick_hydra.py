"""The tests' faster composition gives Hydra's own configs."""

import subprocess
import sys

from hydra._internal.config_repository import ConfigRepository
from omegaconf import OmegaConf
from support.command_line import PROCESSES
from support.federations import of_options

PLAIN = """
import sys, hydra
from omegaconf import OmegaConf
from fedexp.cli.hydra_api import initialize
from fedexp.cli.command import config_folder
with initialize(config_folder()):
    for line in sys.stdin:
        print(OmegaConf.to_yaml(hydra.compose("config", line.split())), end="\\0")
"""
"""Composes each line of its input in a process of its own."""

CHOICES = [
    "algorithm=fedavg",
    "algorithm=fednh head=etf loss=focal",
    "algorithm=fedptr model=conv2cifar data=cifar10",
    "experiment=leaderboard/digits_dir03 algorithm=fedrep",
    "experiment=cifar10 seed=3",
    "+own.key=x ~measure.personal",
]


def test_the_same_config() -> None:
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN],
        input="\n".join(CHOICES),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    assert [OmegaConf.to_yaml(of_options(tuple(each.split()))) for each in CHOICES] == plain[:-1]


def exit_whether_it_is_quick() -> None:
    sys.exit(ConfigRepository.load_config.__module__ != "support.quick_hydra")


def test_forked_commands_compose_quickly() -> None:
    process = PROCESSES.Process(target=exit_whether_it_is_quick)
    process.start()
    process.join()
    assert process.exitcode == 0

"""The job in fedexp; further arguments of the program are config overrides."""

import sys

import torch

from benchmark.peers.task import Clock, load
from benchmark.rounds import prepare


def main() -> None:
    task, clock = load(), Clock("fedexp")
    torch.set_num_threads(task.threads)
    federation = prepare([*task.overrides, *sys.argv[2:]])
    parts = {"0": "backbone", "1": "head.linear"}
    for name, value in task.model.state_dict().items():
        place, _, rest = name.partition(".")
        federation.server.weights[f"{parts[place]}.{rest}"].copy_(value)
    for round in range(1, task.rounds + 1):
        clock.start()
        federation.run_round(round)
        clock.stop()
    clock.finish(task.loss(federation.global_model(task.rounds)))


if __name__ == "__main__":
    main()

"""The stored runs of FedNH and FedAvg at the size of FedNH's paper, and their gains."""

import numpy as np

from support.result_pages import stored

GLOBAL = "global/accuracy"


def gains(metric: str) -> list[float]:
    """FedNH's gains at its paper's size, one a seed."""
    found = {}
    for run in stored("cifar10_fednh_table1"):
        words = dict(word.split("=", 1) for word in run["overrides"])
        last_five = list(run[GLOBAL].values())[-5:]
        own = np.mean(last_five) if metric == GLOBAL else run["last"][metric]
        found[words["algorithm"], words["seed"]] = float(own)
    return [found["fednh", seed] - found["fedavg", seed] for seed in "012"]

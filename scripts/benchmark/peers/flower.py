"""The job in Flower, with its simulation engine on Ray: each core trains one client at a time."""

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmark.peers.task import Clock, load

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    task, client = load(), int(context.node_config["partition-id"])
    torch.set_num_threads(1)
    task.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    task.train(task.model, client)
    metrics = MetricRecord({"num-examples": len(task.clients[client])})
    found = {"arrays": ArrayRecord(task.model.state_dict()), "metrics": metrics}
    return Message(content=RecordDict(found), reply_to=message)


class Timed(FedAvg):
    def __init__(self, clock: Clock) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=len(load().clients))
        self.clock = clock

    def configure_train(self, *arguments: Any) -> Iterable[Message]:
        self.clock.start()
        return super().configure_train(*arguments)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) < len(load().clients):
            raise RuntimeError(f"{len(replies)} replies, failed: {failed}")
        result = super().aggregate_train(server_round, replies)
        self.clock.stop()
        return result


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    task, clock = load(), Clock("flwr")
    initial = ArrayRecord(task.model.state_dict())
    result = Timed(clock).start(grid, initial, num_rounds=task.rounds)
    task.model.load_state_dict(result.arrays.to_torch_state_dict())
    clock.finish(task.loss(task.model))


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(load().clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": load().threads},
        },
    )

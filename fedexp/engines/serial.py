"""The default engine: Fabric drives one resident module over the cohort, client after client."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedexp.client import ClientModule
from fedexp.engines.base import Engine
from fedexp.messages import Message, Update


class Serial(Engine):
    """Trains clients one after another, each on all of the device."""

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Each client's update in turn."""
        self.resources.store.begin_round()
        for client, draws in Counter(cohort).items():
            try:
                with self.resources.store.open(client) as drawer:
                    loss = self.fit(self.begin(client, message, drawer))
                    update = self.finish(drawer, loss.item(), draws)
            except Exception as error:
                error.add_note(f"while training client {client} in round {message.round}")
                raise
            yield update

    def fit(self, module: ClientModule) -> Tensor:
        """Local training; returns the mean loss over its steps, still on the device."""
        fabric, local = self.resources.fabric, self.resources.local
        batches = module.data.local_batches(module.round, local.batch_size)
        losses = []
        module.train()
        for phase in self.resources.personalization.phases(local.epochs):
            module.train_only(phase.trains)
            optimizer = module.configure_optimizers()
            for _ in range(phase.epochs):
                for step, batch in enumerate(batches):
                    with fabric.autocast():
                        loss = module.training_step(batch, step)
                    fabric.backward(loss)
                    if local.grad_clip is not None:
                        fabric.clip_gradients(module, optimizer, max_norm=local.grad_clip)
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.detach())
        return torch.stack(losses).mean()

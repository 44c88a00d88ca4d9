"""The default engine: Fabric drives one resident module over the cohort, client after client."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.client import ClientModule
from fedexp.engines.base import Engine, Predictions, Resources
from fedexp.messages import Message, Tensors, Update
from fedexp.prototypes import class_prototypes
from fedexp.randomness import seed_layers


class Serial(Engine):
    """Trains clients one after another, each on all of the device."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        private = resources.split(resources.module.weights)[1]
        self._untrained = {name: weight.clone() for name, weight in private.items()}

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Each client's update in turn. An error carries the client's number and the round."""
        self.resources.store.begin_round()
        for client, draws in Counter(cohort).items():
            try:
                update = self._train_client(client, draws, message)
            except Exception as error:
                error.add_note(f"while training client {client} in round {message.round}")
                raise
            yield update

    def probe(self, clients: Sequence[int], message: Message) -> Iterator[tuple[int, Tensors]]:
        """Each client's answer in turn."""
        if not clients:
            return
        module = self.resources.seat_global(message)
        for client in clients:
            module.seat(self._private(client))
            module.start(self.resources.data.clients[client], message.round)
            yield client, self.resources.sampler.answer(module)

    def evaluate(self, message: Message) -> Predictions:
        """The global model on the test split."""
        self.resources.seat_global(message)
        return self._predict()

    def evaluate_personal(self, message: Message) -> Iterator[tuple[int, Predictions]]:
        """The latest local model of every client that the store remembers."""
        for client in self.resources.store.remembered:
            self.resources.module.seat(self.resources.store.model(client))
            yield client, self._predict()

    def _train_client(self, client: int, draws: int, message: Message) -> Update:
        parts, store = self.resources.parts, self.resources.store
        module = self._seat(client, message)
        loss = self._fit(module)
        reports = {
            name: part.report(module, store.memory(client, name)) for name, part in parts.items()
        }
        trained = {name: value.clone() for name, value in module.weights.items()}
        shared, private = self.resources.split(trained)
        store.keep(client, trained, private)
        return Update(
            client=client,
            num_samples=module.data.num_samples,
            weights=shared,
            extras={name: report for name, report in reports.items() if report},
            metrics={"loss": loss.item(), **module.noted},
            directions=module.directions,
            draws=draws,
        )

    def _private(self, client: int) -> Tensors:
        """The weights that this client keeps to itself, untrained as long as it has not trained."""
        return self.resources.store.private(client) or self._untrained

    def _seat(self, client: int, message: Message) -> ClientModule:
        """The resident module as this client at the start of local training."""
        data, store = self.resources.data, self.resources.store
        module = self.resources.seat_global(message)
        module.seat(self._private(client))
        module.start(data.clients[client], message.round)
        seed_layers(module.device, data.seed, "local", message.round, client)
        for name, part in self.resources.parts.items():
            part.begin(module, message, store.memory(client, name))
        return module

    def _fit(self, module: ClientModule) -> Tensor:
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

    @torch.inference_mode()
    def _predict(self) -> Predictions:
        """The resident module on the whole test split."""
        module, test = self.resources.module.eval(), self.resources.data.test
        features, logits = [], []
        for inputs, _ in test.batches(self.resources.eval_batch_size):
            with self.resources.fabric.autocast():
                features.append(module.backbone(inputs))
                logits.append(module.head(features[-1]))
        z, scores = torch.cat(features).float(), torch.cat(logits).float()
        class_vectors = {"feature": class_prototypes(z, test.labels, scores.shape[1])[0].cpu()}
        classifier = module.head.prototypes()
        if classifier is not None:
            class_vectors["classifier"] = classifier.cpu()
        return Predictions(
            correct=(scores.argmax(dim=1) == test.labels).cpu(),
            loss=F.cross_entropy(scores, test.labels).item(),
            class_vectors=class_vectors,
        )

"""FedProx on a client's samples and on learned synthetic images: a baseline of FedPTR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, cast

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from fedexp.config.compatibility.traits import (
    LEAVES_OUT_CLASSES,
    OTHER_START,
    SECOND_DERIVATIVES,
    UNTRAINED_CLASSIFIER,
)
from fedexp.contract import Client, Memory, PartMessage, Setting
from fedexp.core.description import Description
from fedexp.core.randomness import torch_generator
from fedexp.data.appended import AppendedData
from fedexp.data.federated import ClientData
from fedexp.regularizers.look_ahead import MatchingOptions, StepMatching
from fedexp.regularizers.proximal import Proximal
from fedexp.regularizers.synthetic import (
    OTHER_CLASSIFIER,
    OTHER_MODELS,
    Augmentation,
    Start,
    check_inputs,
    client_start,
    synthetic_labels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ProximalSynthetic(Proximal):
    """FedProx on a client's samples and on a synthetic dataset D~ that the client learns.

    The client learns D~ by trajectory matching, as in FedPTR with ``side=client`` (Chen et al.,
    arXiv 2312.14380, Table 12). Gradient steps on D~ lead from w^(t-m) to w^t. w^t is the global
    model of the client's round t, counting only this client's rounds. FedPTR predicts the next
    model with D~; here D~ is only further training data.

    In each epoch the images of D~ are appended to the client's batches, in a new random order and
    spread as evenly as possible. The number of steps in an epoch does not change. Each image is in
    one batch of an epoch and counts like a sample in every term of the loss. In local training the
    images are not augmented. The client's number of samples, the class counts and other
    computations on the client's data ignore D~. The exception is ``aggregator=fisher_weighted``
    with ``gradients=batch``, which takes the training batches. No additional tensors are sent.

    Personal models do not use D~. Until the client has received a w^(t-m), the method is FedProx.
    The metric ``synthetic/images`` is the number of images that a client appended.

    Args:
        mu: strength of the pull to w^t.
        lag: m, the number of rounds between w^(t-m) and w^t. ``Trajectory`` has details on this and
            the following arguments.
        wait: rounds to skip, beginning with the first for which w^(t-m) exists.
        ipc: images of each class in D~.
        init: the initial D~.
        outer_steps: H, updates of D~ and of the step size in a round.
        inner_steps: R, gradient steps on D~ in each outer step.
        augment: augmentation of D~ before every inner step.
        step_size: initial size of the inner steps.
        image_lr: learning rate of the images.
        step_lr: learning rate of the step size.
        momentum: momentum factor in learning the images and the step size. Each round starts with
            zero momentum.
        update_every: number of rounds from one learning of D~ to the next. If None, D~ is learned
            only once.
        recompute: whether to repeat each inner step in the backward pass, to save memory.
    """

    takes_tokens = False
    takes_only_merged = True
    traits = frozenset({SECOND_DERIVATIVES})
    forbids = {
        UNTRAINED_CLASSIFIER: OTHER_CLASSIFIER,
        LEAVES_OUT_CLASSES: "regularizer=proximal_synthetic: clients train on synthetic images of "
        "every class, but this {other} leaves out the classes that a client lacks, so that the "
        "loss would be infinite",
    }
    discourages = {OTHER_START: OTHER_MODELS}

    def __init__(
        self,
        mu: NonNegativeFloat,
        lag: PositiveInt,
        wait: NonNegativeInt,
        ipc: PositiveInt,
        init: Start,
        outer_steps: PositiveInt,
        inner_steps: PositiveInt,
        augment: Augmentation,
        step_size: float,
        image_lr: NonNegativeFloat,
        step_lr: NonNegativeFloat,
        momentum: Annotated[float, Field(ge=0, lt=1)],
        update_every: PositiveInt | None,
        recompute: bool,
    ) -> None:
        super().__init__(mu)
        self.ipc, self.init, self.augment = ipc, init, augment
        options = MatchingOptions(outer_steps, inner_steps, image_lr, step_lr, momentum, recompute)
        augments = augment == "dsa"
        self.matching = StepMatching(lag, wait, step_size, update_every, augments, options)

    def setup(self, setting: Setting) -> None:
        """Make buffers for the global model, and the object that learns the synthetic dataset.

        Raises:
            InputError: the inputs are tokens, or ``augment`` does not fit the inputs.
        """
        super().setup(setting)
        check_inputs(self.augment, setting)
        self.setting = setting
        self.matching = replace(self.matching, names=frozenset(setting.model.shared_parameters))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the anchors to the global model, and learn the synthetic dataset.

        The synthetic images are appended to the client's batches.
        """
        super().begin(client, message, memory)
        setting, data, device = self.setting, client.data, client.device
        labels = synthetic_labels(setting.num_classes, self.ipc, device)
        _, metrics = self.matching.learn(
            memory,
            message.weights,
            client.global_model(),
            labels,
            partial(client_start, setting, self.ipc, device, data, message.round, self.init),
            torch_generator(setting.seed, "augment synthetic", message.round, data.client),
        )
        images = memory.get("synthetic")
        count = 0 if images is None else len(images)
        client.record(metrics | {"synthetic/images": float(count)})
        if images is not None:
            order = torch_generator(setting.seed, "append synthetic", message.round, data.client)
            client.train_on(AppendedData(cast(ClientData, data), images, labels, order))

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """A figure of the synthetic dataset D~ of the first client that has such a dataset."""
        from fedexp.regularizers.synthetic_images import dataset_figure

        return dataset_figure(memories.values(), about)

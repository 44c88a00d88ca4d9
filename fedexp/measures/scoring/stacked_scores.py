"""Scores the personal models in a ``Stack`` at once, on the test split."""

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.rnn import pad_sequence

from fedexp.core.forward import Outputs
from fedexp.core.messages import count_bytes
from fedexp.engines.footprint import stack_bytes
from fedexp.engines.layout import convolves
from fedexp.engines.resources import Resources
from fedexp.engines.stack import Stack, StackedMethod
from fedexp.measures.scoring.predictions import Predictions, Selection, outputs_of_head, score_rows

_CPU_BYTES = 2**25
"""Largest size of a stack on a CPU (32 MiB); larger stacks of an MLP were hardly faster."""

_CUDA_SHARE = 0.3
"""Largest share of a GPU's memory for a stack; temporary tensors need the rest."""


class StackedScores:
    """Scores several models at once, each of them a row of a ``Stack``.

    Args:
        resources: the objects that the engine works with.
        outputs: inputs -> the features and logits that the resident module gives them. Besides the
            inputs, the result depends only on the module's parameters and buffers.
    """

    def __init__(self, resources: Resources, outputs: Callable[[Tensor], Outputs]) -> None:
        self.resources, self._outputs = resources, outputs
        self._on_same = StackedMethod(resources.module, outputs, shared=True)
        self._on_own = StackedMethod(resources.module, outputs)
        self._of_head = StackedMethod(resources.module, self._outputs_of_head)
        self._size: int | None = None

    @property
    def size(self) -> int:
        """Number of models that are scored at once; 1 if a stack does not work or is not faster.

        The first use computes the number with the resident module. For a model with convolutions on
        a CPU the number is 1, because there a stack of conv2cifar models takes three times as long
        as the models one after another.
        """
        if self._size is None:
            module = self.resources.module.eval()
            slow = convolves(module) and module.device.type == "cpu"
            self._size = 1 if slow or not self._works() else self._models_that_fit()
        return self._size

    @torch.no_grad()  # not inference mode, where functorch cannot detach
    def __call__(
        self, stack: Stack, selections: Sequence[Selection | None]
    ) -> Iterator[Predictions]:
        """Yield the predictions of the models in the stack, in the order of its rows.

        While a model's predictions are yielded, the resident module holds this model.

        Args:
            stack: the models, one in each row.
            selections: the test samples for each model; None: the whole test split. Either all
                models have a selection, or no model has.
        """
        test = self.resources.data.test
        self.resources.module.eval()
        chosen = [each for each in selections if each is not None]
        if chosen:
            index = _padded(chosen)
            found, labels = self._selected(stack, index), test.labels[index]
            averaged = torch.tensor([each.averaged for each in chosen], device=index.device)
            real = torch.arange(index.shape[1], device=index.device) < averaged.unsqueeze(1)
        else:
            found, labels, real = self._whole(stack), test.labels, None
        z, logits = (torch.cat(each, dim=1) for each in zip(*found, strict=True))
        of_head = self._of_head.rows(stack.state, z)
        for row, each in enumerate(score_rows(z, logits, of_head, labels, real)):
            stack.load_row(row)
            yield each if not chosen else each.within(len(test), chosen[row].index)

    def _whole(self, stack: Stack) -> Iterator[Outputs]:
        """For each batch of B test samples, yield K models' features and logits [K, B, ...]."""
        for inputs, _ in self.resources.data.test.batches(self.resources.eval_batch_size):
            with self.resources.fabric.autocast():
                yield self._on_same.rows(stack.state, inputs)

    def _selected(self, stack: Stack, index: Tensor) -> Iterator[Outputs]:
        """Like ``_whole``, but each model gets its own samples; outputs are [K, B, ...].

        ``index`` [K, n] has the positions of each model's samples in the test split.
        """
        test, size = self.resources.data.test, self.resources.eval_batch_size
        for chunk in torch.split(index, size, dim=1):
            ((inputs, _),) = test.batches(chunk.numel(), chunk.flatten())
            with self.resources.fabric.autocast():
                yield self._on_own.rows(stack.state, inputs.view(*chunk.shape, *inputs.shape[1:]))

    def _outputs_of_head(self, z: Tensor) -> dict[str, Tensor]:
        """``outputs_of_head`` of the resident module's head for the features ``z``."""
        score_head = self.resources.personalization.class_vectors() is not None
        return outputs_of_head(self.resources.module.head, z, score_head)

    def _works(self) -> bool:
        """Whether a stack of two copies of the model gives the model's outputs, without warnings.

        Some layers and some kinds of control flow do not work in a stack.
        """
        fabric, inputs = self.resources.fabric, self._two_samples()
        stack = Stack(self.resources.module, 2)
        for name, value in self.resources.module.tensor_index.everything():
            stack.state[name].copy_(value.detach())
        try:
            with warnings.catch_warnings(), torch.no_grad(), fabric.autocast():
                warnings.simplefilter("error")  # PyTorch warns if it uses a slow loop
                expected = self._outputs(inputs)
                found = self._on_same.rows(stack.state, inputs)
                own = self._on_own.rows(stack.state, torch.stack([inputs, inputs]))
                self._of_head.rows(stack.state, own.z)
        except Exception:
            return False
        return all(
            torch.allclose(each, single.expand_as(each), rtol=1e-2, atol=1e-3, equal_nan=True)
            for several in (found, own)
            for each, single in zip(several, expected, strict=True)
        )

    def _models_that_fit(self) -> int:
        """The number of models (at least 1) whose weights and layer outputs fit into memory."""
        outputs = 0

        def measure(layer: nn.Module, _: object, output: object) -> None:
            nonlocal outputs
            if isinstance(output, Tensor):
                outputs += output.numel() * output.element_size()

        inputs = self._two_samples()
        hook = register_module_forward_hook(measure)
        try:
            with torch.inference_mode(), self.resources.fabric.autocast():
                self._outputs(inputs)
        finally:
            hook.remove()
        module, test = self.resources.module, self.resources.data.test
        samples = min(self.resources.eval_batch_size, len(test))
        weights = count_bytes(dict(module.tensor_index.everything()))
        each = weights + outputs * samples // len(inputs)
        return max(1, int(stack_bytes(module.device, _CPU_BYTES, _CUDA_SHARE) // each))

    def _two_samples(self) -> Tensor:
        test = self.resources.data.test
        positions = torch.arange(2, device=test.labels.device) % len(test)
        return test.gather(positions)[0]


def _padded(selections: Sequence[Selection]) -> Tensor:
    """The positions [K, n] of each selection's samples; shorter selections are padded with 0.

    n is at least one.
    """
    index = pad_sequence([each.index for each in selections], batch_first=True)
    return index if index.numel() else index.new_zeros(len(index), 1)

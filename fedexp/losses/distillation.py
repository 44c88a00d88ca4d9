"""The divergence between the predictions of two models, from which one learns from the other."""

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """The divergence KL(teacher || student) for each sample. The teacher gets no gradient.

    Args:
        logits: the student's logits [B, C].
        teacher_logits: the teacher's logits [B, C].

    Returns:
        The divergences [B]. A class that the teacher excludes (logit -inf) adds 0.
    """
    # The least finite number replaces -inf: -inf minus -inf would be NaN.
    student, teacher = (
        F.log_softmax(each.clamp(min=torch.finfo(each.dtype).min), dim=1)
        for each in (logits, teacher_logits.detach())
    )
    # F.kl_div is not used, because vmap would run it client by client.
    return (teacher.exp() * (teacher - student)).sum(dim=1)

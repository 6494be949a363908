"""What attacks ascend: per-sample losses of logits (B, K), each (B,), higher where the model is nearer to failing."""

import torch
from torch import Tensor

CW_CONFIDENCE = 50.0


def logit_of(logits: Tensor, classes: Tensor) -> Tensor:
    """The logit of one class a sample, (B,)."""
    return logits.gather(1, classes[:, None]).squeeze(1)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """z_y - max_{j != y} z_j: negative where the model is wrong."""
    return logit_of(logits, y) - logits.scatter(1, y[:, None], -torch.inf).amax(1)


def cw_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Carlini-Wagner's margin loss: -max(z_y - max_{j != y} z_j + 50, 0)."""
    return -(margin(logits, y) + CW_CONFIDENCE).clamp_min(0)


def dlr_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio: -(z_y - max_{j != y} z_j) / (z_(1) - z_(3)), z_(i) the i-th largest logit.

    Of two classes there is no third logit, and z_(1) - z_(2) would cancel the margin: there the margin itself counts.
    """
    if logits.shape[1] < 3:
        return -margin(logits, y)
    largest = logits.topk(3, dim=1).values
    return -margin(logits, y) / (largest[:, 0] - largest[:, 2] + 1e-12)


def targeted_dlr_loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """-(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2).

    Below four classes there is no fourth logit, and any shorter denominator cancels the numerator for some target:
    there z_t - z_y counts.
    """
    gap = logit_of(logits, target) - logit_of(logits, y)
    if logits.shape[1] < 4:
        return gap
    largest = logits.topk(4, dim=1).values
    return gap / (largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2 + 1e-12)

"""Independent answers to test against: a linear model whose nearest adversary is known in closed form."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

SHAPE = (1, 4, 4)


class Linear(nn.Module):
    """Logits x @ W.T + b, in float64 so that closed forms hold to rounding."""

    def __init__(self, num_classes: int, seed: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(scale * torch.randn(num_classes, 16, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(0.1 * torch.randn(num_classes, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


def interior_batch(size: int, num_classes: int, eps: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images at least eps away from 0 and 1, so that the image range never cuts the ball."""
    generator = torch.Generator().manual_seed(seed)
    x = eps + (1 - 2 * eps) * torch.rand(size, *SHAPE, generator=generator, dtype=torch.float64)
    return x, torch.randint(num_classes, (size,), generator=generator)


def smallest_margin(model: Linear, x: Tensor, y: Tensor, eps: Tensor | float, norm: str) -> Tensor:
    """min over the ball of z_y - max_{j != y} z_j, exactly: the clean margin to each class less eps times the
    dual norm of the difference of the weights."""
    logits = model(x)
    difference = model.weight[y][:, None] - model.weight[None]  # (B, K, d)
    dual = difference.abs().sum(2) if norm == "linf" else difference.norm(dim=2)
    radius = torch.as_tensor(eps, dtype=x.dtype).reshape(-1, 1)
    margins = logits.gather(1, y[:, None]) - logits - radius * dual
    smallest: Tensor = margins.scatter(1, y[:, None], torch.inf).amin(1)
    return smallest.detach()


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Fails if the body changes the model's mode, weights, buffers or gradients."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    yield
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())

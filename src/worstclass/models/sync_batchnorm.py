"""BatchNorm over the whole batch when the batch is split over processes, on GPUs and on CPUs alike."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from worstclass.errors import UserError


@torch.library.custom_op("worstclass::sum_over_processes", mutates_args=())
def _sum(values: Tensor) -> Tensor:
    """The sum over all processes. Its gradient is one too, because the loss is the sum of theirs.

    The compiler does not look inside. It did into an autograd.Function, and gradients were wrong (2.11, on a GPU).
    """
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


@_sum.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


_sum.register_autograd(lambda ctx, grad: _sum(grad))


class _Synced(nn.modules.batchnorm._BatchNorm):
    """In training, mean and variance are over all processes' images; in evaluation nothing is different."""

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and dist.is_initialized()):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        x = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        axes = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        var, mean = (each.double() for each in torch.var_mean(x, axes, correction=0))
        count = torch.full_like(mean[:1], x.numel() // x.shape[1])
        sums: Tensor = _sum(torch.cat([count, count * mean, count * (var + mean**2)]))
        count, mean, square = sums.split([1, len(mean), len(mean)])
        mean = mean / count
        var = (square / count - mean**2).clamp_min(0)
        self._track(mean.detach(), (var * count / (count - 1)).detach())
        x = (x - mean.to(x.dtype).view(shape)) * torch.rsqrt(var + self.eps).to(x.dtype).view(shape)
        if self.affine:
            x = x * self.weight.view(shape) + self.bias.view(shape)
        out: Tensor = x.to(input.dtype)
        return out

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.double() if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            running.copy_(running.double() * (1 - share) + new * share)


class SyncedBatchNorm1d(_Synced, nn.BatchNorm1d):
    """`nn.BatchNorm1d` over all processes' images."""


class SyncedBatchNorm2d(_Synced, nn.BatchNorm2d):
    """`nn.BatchNorm2d` over all processes' images."""


class SyncedBatchNorm3d(_Synced, nn.BatchNorm3d):
    """`nn.BatchNorm3d` over all processes' images."""


SYNCED: dict[type[nn.modules.batchnorm._BatchNorm], type[_Synced]] = {
    nn.BatchNorm1d: SyncedBatchNorm1d,
    nn.BatchNorm2d: SyncedBatchNorm2d,
    nn.BatchNorm3d: SyncedBatchNorm3d,
}


def sync_norms(model: nn.Module) -> None:
    """Let every BatchNorm of a model see the whole batch, in place: parameters, buffers and names stay.

    One of another kind than torch's own, or without running statistics, would silently see its process's part: it is
    refused.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm) or isinstance(module, nn.SyncBatchNorm):
            continue
        kind = type(module)
        if module.running_mean is None or kind not in (*SYNCED, *SYNCED.values()):
            what = f"is a {kind.__name__}" if module.running_mean is not None else "keeps no running statistics"
            raise UserError(f"layer '{name}' {what}: several processes cannot train such a BatchNorm as one.")
        module.__class__ = SYNCED.get(kind, kind)

"""Batches on a device: of images that lie there, or of images that do not fit and are fetched one batch ahead."""

from collections.abc import Iterator

import torch
from torch import Tensor

from worstclass.data.images import Images


class Resident:
    """Images that lie on the device: a batch is its indices."""

    def __init__(self, images: Images, device: torch.device) -> None:
        self.images = images.to(device)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """For each batch of an order, where its images are in `images`."""
        yield from order.to(self.images.y.device).split(size)


class Streamed:
    """Images that stay in host memory; `images` is a window on the device that holds one batch at a time.

    The next batch is gathered into pinned memory and copied on a stream of its own while the device works on this one.
    """

    def __init__(self, images: Images, device: torch.device, window: int) -> None:
        self._host, self._device, self._turn = images, device, 0
        self.images = _empty(images, window).to(device)
        self._rows = torch.arange(window, device=device)
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self._stream = torch.cuda.Stream(device)
            self._pinned = [_empty(images, window, pin=True) for _ in range(2)]
            self._staged = [_empty(images, window).to(device) for _ in range(2)]
            self._copied = [torch.cuda.Event() for _ in range(2)]
            self._used = [torch.cuda.Event() for _ in range(2)]
        self._place(images.select(torch.arange(window)))

    def __len__(self) -> int:
        return len(self._host)

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """For each batch of an order, where its images are in `images`: they are there until the next is asked for."""
        parts = order.cpu().split(size)
        ahead = self._fetch(parts[0]) if parts else None
        for following in (*parts[1:], None):
            if ahead is None:
                return
            self._place(ahead)
            yield self._rows[: len(ahead)]
            ahead = None if following is None else self._fetch(following)

    def _fetch(self, index: Tensor) -> Images:
        """Begin to bring a batch to the device."""
        if not self._on_gpu:
            return self._host.select(index)
        turn = self._turn = 1 - self._turn
        size, pinned, staged = len(index), self._pinned[turn], self._staged[turn]
        self._copied[turn].synchronize()  # two batches ago: long done
        torch.index_select(self._host.x, 0, index, out=pinned.x[:size])
        torch.index_select(self._host.y, 0, index, out=pinned.y[:size])
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._used[turn])
            staged.x[:size].copy_(pinned.x[:size], non_blocking=True)
            staged.y[:size].copy_(pinned.y[:size], non_blocking=True)
            self._copied[turn].record(self._stream)
        return Images.unchecked(staged.x[:size], staged.y[:size])

    def _place(self, batch: Images) -> None:
        """Put a batch that was fetched into the window."""
        if self._on_gpu:
            torch.cuda.current_stream(self._device).wait_event(self._copied[self._turn])
        self.images.x[: len(batch)].copy_(batch.x)
        self.images.y[: len(batch)].copy_(batch.y)
        if self._on_gpu:
            self._used[self._turn].record()


Feed = Resident | Streamed


def make_feed(images: Images, device: torch.device, *, window: int, limit: int | None = None) -> Feed:
    """Images on the device if they take at most `limit` bytes; by default, half of what a GPU has free."""
    if fits(images, device, limit):
        return Resident(images, device)
    return Streamed(images, device, min(window, len(images)))


def fits(images: Images, device: torch.device, limit: int | None = None) -> bool:
    """Whether images may lie on the device, as `make_feed` says."""
    if limit is None:
        limit = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else images.x.nbytes
    return images.x.nbytes <= limit


def _empty(images: Images, size: int, *, pin: bool = False) -> Images:
    return Images.unchecked(
        torch.empty((size, *images.x.shape[1:]), dtype=images.x.dtype, pin_memory=pin),
        torch.zeros(size, dtype=images.y.dtype, pin_memory=pin),
    )

"""What a data set is: its class names, and a reader of its parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from worstclass.data.images import Images

Part = Literal["train", "validation", "test"]
VALIDATION_NAMES = ("validation", "valid", "val")
"""How people call the part: a folder, a split, the end of an array's name."""


@dataclass(frozen=True)
class Source:
    """A data set: its class names, and a reader that touches only the part it is asked for.

    `test_shape` is (C, H, W) of the test images where that is known without them. `has_validation` says whether there
    is a validation part. `notes`, of some parts or all, say what is not read, and what of the parts read so far is
    enlarged much.
    """

    name: str
    class_names: tuple[str, ...]
    read: Callable[[Part], Images]
    test_shape: Callable[[], tuple[int, ...] | None] = lambda: None
    has_validation: bool = False
    notes: Callable[..., list[str]] = lambda *parts: []

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

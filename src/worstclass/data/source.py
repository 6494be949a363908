"""What a data set is: its class names, and a reader of its parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from worstclass.data.images import Images, split_validation
from worstclass.errors import UserError, class_called

Part = Literal["train", "test"]


@dataclass(frozen=True)
class Source:
    """A data set: its class names, and a reader that touches only the part it is asked for.

    `test_shape` is (C, H, W) of the test images where that is known without them. `validation` is a mask of the
    training part, the validation images that the data bring, or None. `notes`, of one part or both, say what is not
    read, and what of the parts read so far is enlarged much.
    """

    name: str
    class_names: tuple[str, ...]
    read: Callable[[Part], Images]
    test_shape: Callable[[], tuple[int, ...] | None] = lambda: None
    validation: Callable[[], Tensor | None] = lambda: None
    notes: Callable[..., list[str]] = lambda *parts: []

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def split(self, images: Images, fraction: float, minimum: int = 0) -> tuple[Images, Images]:
        """Training and validation images out of the training part: as the data have them, or as `split_validation`."""
        own = self.validation()
        if own is None:
            return split_validation(images, self.num_classes, fraction, minimum, class_names=self.class_names)
        own = own.to(images.y.device)
        train, valid = images.select(~own), images.select(own)
        for kind, part in (("training", train), ("validation", valid)):
            for k, count in enumerate(part.class_counts(self.num_classes).tolist()):
                if count == 0:
                    raise UserError(f"data '{self.name}': {class_called(k, self.class_names)} has no {kind} image.")
        return train, valid

"""Data on the training device: sources, the stratified split, order and augmentation."""

from worstclass.data.augment import Augment, Augmentation
from worstclass.data.checks import exact_duplicates, image_digests, mirror_pairs, repeated_images, validation_shift
from worstclass.data.feed import Feed, Resident, Streamed, fits, make_feed
from worstclass.data.images import (
    Images,
    channel_statistics,
    epoch_order,
    held_out,
    long_tail,
    split_validation,
    to_float,
)
from worstclass.data.source import Source
from worstclass.data.sources import data_at_hand, open_source

__all__ = [
    "Augment",
    "Augmentation",
    "Feed",
    "Images",
    "Resident",
    "Source",
    "Streamed",
    "channel_statistics",
    "data_at_hand",
    "epoch_order",
    "exact_duplicates",
    "fits",
    "held_out",
    "image_digests",
    "long_tail",
    "make_feed",
    "mirror_pairs",
    "open_source",
    "repeated_images",
    "split_validation",
    "to_float",
    "validation_shift",
]

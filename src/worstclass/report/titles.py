"""Titles: no two runs are called alike, and they are told apart by what differs."""

from collections.abc import Sequence
from pathlib import Path

from worstclass.config.differences import differing_keys, plain
from worstclass.config.keys import Config

LONGEST_SETTINGS = 60  # characters of a title


def distinguish(
    titles: Sequence[str],
    folders: Sequence[Path],
    configs: Sequence[Config | None],
    checkpoints: Sequence[str | None] | None = None,
) -> list[str]:
    """The titles; where several are alike, each with what tells it apart: its settings and the epoch that was taken,
    else its folder, else a number."""
    told = list(titles)
    for title in [title for title in dict.fromkeys(titles) if titles.count(title) > 1]:
        same = [index for index, other in enumerate(titles) if other == title]
        settings = _own_settings([configs[index] for index in same])
        epochs = [checkpoints[index] if checkpoints else None for index in same]
        for index, own, epoch in zip(same, settings, epochs, strict=True):
            told[index] += own + (f", {epoch} epoch" if len(set(epochs)) > 1 and epoch else "")
    for name in (lambda folder: folder.name, lambda folder: str(Path(*folder.resolve().parts[-2:]))):
        named = [f"{title} ({name(folder)})" for title, folder in zip(told, folders, strict=True)]
        apart = len(set(named)) == len(named)
        if len(set(told)) < len(told) and apart:
            told = [new if told.count(old) > 1 else old for new, old in zip(named, told, strict=True)]
    told = [t if told.count(t) == 1 else f"{t} ({f.name})" for t, f in zip(told, folders, strict=True)]
    return [t if told.count(t) == 1 else f"{t} {told[: i + 1].count(t)}" for i, t in enumerate(told)]


def _own_settings(configs: Sequence[Config | None]) -> list[str]:
    """Of each run, where their recipes differ; nothing where one has none, or where that is too long for a title."""
    known = [config for config in configs if config]
    keys = differing_keys(*known) if known else []
    own = [[key for key in keys if key in config.used_keys] for config in known]
    settings = [
        "".join(f", {key} {plain(getattr(config, key), key)}" for key in its)
        for config, its in zip(known, own, strict=True)
    ]
    fits = len(known) == len(configs) and max(map(len, settings)) <= LONGEST_SETTINGS
    return settings if fits else [""] * len(configs)

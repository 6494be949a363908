"""Photos in class folders."""

from pathlib import Path

import pytest

from photos import PHOTOS, write


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of 20 images, each of another colour."""
    write(tmp_path / "photos", PHOTOS)
    return tmp_path / "photos"

"""What made a number: versions of the package and of what it stands on."""

import platform

import numpy as np
import torch

from worstclass.inputs.names import VERSION


def versions() -> dict[str, str]:
    """What made a number: the package, Python, torch and the device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "worstclass": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": device,
    }

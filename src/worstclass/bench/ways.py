"""The ways to take a training step that `worstclass bench train` compares, and how the engine of each is set."""

from typing import Any

PUBLIC = "public code"
WAYS: dict[str, dict[str, Any]] = {
    "eager fp32": {},
    "eager tf32": {"precision": "tf32"},
    "fast fp32": {"fast": True},
    "fast tf32": {"fast": True, "precision": "tf32"},
    "fast bf16": {"fast": True, "precision": "bf16"},
    "fast bf16 deterministic": {"fast": True, "precision": "bf16", "deterministic": True},
}
PARTS = ("ema", "awp", "tables")
"""Parts of a step to add, "fast bf16 + ema": averaged weights, weight perturbation, K x K tables."""

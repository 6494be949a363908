"""Speed, side by side in one run: a ratio means something on any machine, a time only on an idle one."""

from typing import TYPE_CHECKING

from worstclass.lazy import importer

__all__ = [
    "Books",
    "Curve",
    "StepTime",
    "Timing",
    "bench_autoattack",
    "bench_classes",
    "bench_training",
    "draw_front",
    "matrix_ceiling",
    "read_curve",
]

if TYPE_CHECKING:
    from worstclass.bench.autoattack import Timing, bench_autoattack
    from worstclass.bench.classes import Books, bench_classes
    from worstclass.bench.robustness import Curve, draw_front, read_curve
    from worstclass.bench.training import StepTime, bench_training, matrix_ceiling
else:
    __getattr__ = importer(
        __name__,
        {
            "autoattack": "Timing bench_autoattack",
            "classes": "Books bench_classes",
            "robustness": "Curve draw_front read_curve",
            "training": "StepTime bench_training matrix_ceiling",
        },
    )

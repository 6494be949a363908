"""Speed, side by side in one run: a ratio means something on any machine, a time only on an idle one."""

from worstclass.bench.autoattack import Timing, bench_autoattack
from worstclass.bench.classes import Books, bench_classes
from worstclass.bench.training import StepTime, bench_training, matrix_ceiling

__all__ = ["Books", "StepTime", "Timing", "bench_autoattack", "bench_classes", "bench_training", "matrix_ceiling"]

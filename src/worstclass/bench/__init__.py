"""Speed, side by side in one run: a ratio means something on any machine, a time only on an idle one."""

from worstclass.bench.autoattack import Timing, bench_autoattack
from worstclass.bench.training import StepTime, bench_training, matrix_ceiling

__all__ = ["StepTime", "Timing", "bench_autoattack", "bench_training", "matrix_ceiling"]

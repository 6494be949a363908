"""Measures of class-wise robustness and their uncertainty."""

from typing import TYPE_CHECKING

from worstclass.lazy import importer

__all__ = [
    "DRAWS",
    "Comparison",
    "Floats",
    "Interval",
    "Measure",
    "average_accuracy",
    "binomial_interval",
    "bootstrap_accuracies",
    "bootstrap_runs",
    "class_counts",
    "class_variance",
    "compare",
    "headline_measures",
    "per_class_accuracy",
    "reverse_interval",
    "rho",
    "room_above",
    "tenth_room_above",
    "variance_interval",
    "worst_class",
    "worst_interval",
    "worst_tenth",
    "worst_tenth_interval",
    "worst_ties",
]

if TYPE_CHECKING:
    from worstclass.metrics.measures import (
        DRAWS,
        Comparison,
        Floats,
        Interval,
        Measure,
        average_accuracy,
        binomial_interval,
        bootstrap_accuracies,
        bootstrap_runs,
        class_counts,
        class_variance,
        compare,
        headline_measures,
        per_class_accuracy,
        reverse_interval,
        rho,
        room_above,
        tenth_room_above,
        variance_interval,
        worst_class,
        worst_interval,
        worst_tenth_interval,
        worst_ties,
    )
    from worstclass.metrics.tail import worst_tenth
else:
    __getattr__ = importer(
        __name__,
        {
            "measures": "DRAWS Comparison Floats Interval Measure average_accuracy binomial_interval "
            "bootstrap_accuracies bootstrap_runs class_counts class_variance compare headline_measures "
            "per_class_accuracy reverse_interval rho room_above tenth_room_above variance_interval worst_class "
            "worst_interval worst_tenth_interval worst_ties",
            "tail": "worst_tenth",
        },
    )

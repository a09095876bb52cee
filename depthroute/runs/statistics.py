"""Paired statistics over seeds.

Seeds of two arms share data order and the initial value of every common parameter, so their losses are compared pair by
pair. The interval is Student's t on the differences: with 3 to 5 seeds it covers what it promises, where a bootstrap does not.
Multiple arms are adjusted with Holm's step-down procedure (Holm 1979, Scandinavian Journal of Statistics 6, 65-70).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit  # the t distribution, without the import time of scipy.stats

LEVEL = 0.95


@dataclass(frozen=True)
class Paired:
    """Mean difference over `n` shared seeds, its 95 % interval and two-sided p; None where `n` is too small for it."""

    n: int
    mean: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return math.fsum(values) / len(values) if values else None


def sd(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds (n - 1 in the denominator); None of fewer than two values."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def paired(values_by_seed: Mapping[int, float], baseline_by_seed: Mapping[int, float]) -> Paired:
    """Differences `values - baseline` over the seeds that both have, with a paired-t interval.

    Seeds that differ by exactly the same amount leave no spread: the interval is that point, and p is 0, or 1 at no difference.
    """
    seeds = sorted(values_by_seed.keys() & baseline_by_seed.keys())
    differences = [values_by_seed[seed] - baseline_by_seed[seed] for seed in seeds]
    n, centre, spread = len(differences), mean(differences), sd(differences)
    if centre is None or spread is None:
        return Paired(n, centre, None, None, None)
    error = spread / math.sqrt(n)
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    if error > 0:
        p = 2 * float(stdtr(n - 1, -abs(centre) / error))
    else:
        p = float(centre == 0)
    return Paired(n, centre, centre - reach, centre + reach, p)


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm-adjusted p-values, by the same names; what has no p-value is not counted as a test and stays None."""
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    tests = sorted((p, name) for name, p in p_values.items() if p is not None)
    largest = 0.0
    for rank, (p, name) in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - rank) * p))
        adjusted[name] = largest
    return adjusted

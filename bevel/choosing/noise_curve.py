"""The noise of DP-SGD against its batch size, for one budget.

A step adds noise of standard deviation `noise_multiplier * clip_norm` to each coordinate of the
sum of clipped gradients, so the mean gradient has noise of `noise_multiplier / batch_size` in units
of the clip norm. Averaged over all steps of a run, `noise_multiplier / batch_size / sqrt(steps)`
of it is left. This number decides how well a run can do:

    Without sampling, every step uses all n examples. The run is then one Gaussian mechanism with
    mu = sqrt(steps) / noise_multiplier, so the noise over the run is 1 / (n mu): it depends on the
    budget and on n, but not on the number of steps. With sampling, the noise over the run nearly
    reaches this least value while the noise multiplier is about 2 or more. With smaller batches
    the noise multiplier approaches its lower limit, and the noise over the run grows quickly.

So very small batches waste the budget, and above the knee larger batches only mean fewer steps.
Ponomareva et al. 2023 (arXiv:2303.00654, section 5) give the same advice.
"""

import dataclasses
import math
from collections.abc import Callable

from dp_accounting import GaussianDpEvent

from bevel.accounting import calibrate_noise_multiplier
from bevel.checks import instance, positive_number, whole_number

# The curve is drawn around the batch size at which the noise multiplier is about this.
NOISE_NEAR_THE_KNEE = 1.7
# The number of batch sizes below and above it, a factor of 2 apart.
POINTS_BELOW, POINTS_ABOVE = 3, 4


@dataclasses.dataclass(frozen=True)
class NoisePoint:
    """A batch size with its number of steps and its calibrated noise multiplier."""

    batch_size: float
    steps: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        positive_number("batch_size", self.batch_size, "the mean batch size")
        whole_number("steps", self.steps)
        positive_number("noise_multiplier", self.noise_multiplier, "calibrated to the budget")

    @property
    def noise_per_step(self) -> float:
        """The noise in each coordinate of a mean gradient, in units of the clip norm."""
        return self.noise_multiplier / self.batch_size

    @property
    def noise_over_run(self) -> float:
        """The noise in each coordinate that is left when the mean over all steps is taken."""
        return self.noise_per_step / math.sqrt(self.steps)


@dataclasses.dataclass(frozen=True)
class NoiseCurve:
    """The noise at several batch sizes, all for the same budget and either epochs or steps.

    Attributes:
      points: by increasing batch size.
      least: the noise over a run whose steps use all examples, which no smaller batch improves on.
      epochs: the number of epochs of all points, or None if they have the same number of steps.
    """

    points: tuple[NoisePoint, ...]
    least: float
    epochs: float | None

    def __post_init__(self) -> None:
        for point in instance("points", self.points, tuple, "a tuple of points"):
            instance("a point", point, NoisePoint, "NoisePoint(...)")
        positive_number("least", self.least, "the noise of a run without sampling")
        if self.epochs is not None:
            positive_number("epochs", self.epochs, "or None for a number of steps")

    def excess(self, point: NoisePoint) -> float:
        """How far the noise over the run is above the least: 0.1 is 10% above."""
        return point.noise_over_run / self.least - 1


# (batch size, steps) -> the calibrated noise multiplier
Calibration = Callable[[float, int], float]


def least_noise(num_units: int, epsilon: float, delta: float, relation: str) -> float:
    """The noise over a run of steps that use all units, in units of the clip norm."""
    noise = calibrate_noise_multiplier(
        GaussianDpEvent, epsilon=epsilon, delta=delta, neighboring_relation=relation
    )
    return noise / num_units


def noise_curve(
    calibrated: Calibration,
    num_units: int,
    least: float,
    *,
    epochs: float | None = None,
    steps: int | None = None,
) -> NoiseCurve:
    """Calibrates the noise for batch sizes around the knee; pass either `epochs` or `steps`.

    Batch sizes are powers of two, and the number of units itself if it is in their range. Each one
    takes less than a second. Only their range is approximate: it comes from the central limit
    theorem, by which sampling a fraction q multiplies mu by q.
    """
    mu = 1 / (least * num_units)
    if epochs is not None:
        fraction = (NOISE_NEAR_THE_KNEE * mu) ** 2 / epochs
    else:
        assert steps is not None
        fraction = NOISE_NEAR_THE_KNEE * mu / math.sqrt(steps)
    middle = round(math.log2(min(max(fraction * num_units, 1), num_units)))
    exponents = range(middle - POINTS_BELOW, middle + POINTS_ABOVE + 1)
    sizes = sorted({min(2**k, num_units) for k in exponents if k >= 0})
    points = []
    for size in sizes:
        count = steps if steps is not None else steps_of(epochs or 1, num_units, size)
        points.append(NoisePoint(size, count, calibrated(size, count)))
    return NoiseCurve(tuple(points), least, epochs)


def steps_of(epochs: float, num_units: int, batch_size: float) -> int:
    """The number of steps of this many epochs, at least one."""
    return max(1, round(epochs * num_units / batch_size))

"""Samples from the dominating pair of distributions of a run, and their privacy losses.

| sampler                 | a sample with the record                                             |
| ----------------------- | -------------------------------------------------------------------- |
| `BallsInBinsSampling`   | one number per step: noise plus the shifts of a random bin           |
| `CyclicPoissonSampling` | one number per round: noise plus 1 with probability `sampling_prob`  |

Noise is `noise_multiplier` times a standard normal, and shifts are in units of the largest column
norm of C, for a record whose contributions have norm 1. docs/accounting.md has the proofs.
"""

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np
import scipy.special

from bevel.accounting import balls_in_bins_event
from bevel.batch_selection import BallsInBinsSampling, CyclicPoissonSampling
from bevel.checks import positive_number, whole_number
from bevel.errors import FixArgumentsError

SupportedStrategies: TypeAlias = BallsInBinsSampling | CyclicPoissonSampling
Seed: TypeAlias = np.random.Generator | int | None


def generate_sample(
    strategy: SupportedStrategies,
    noise_multiplier: float,
    c_col: np.ndarray,
    seed: Seed = None,
    positive_sample: bool = True,
    num_samples: int = 1,
    dataset_size: int | None = None,
) -> np.ndarray:
    """Draws samples of shape (num_samples, steps or rounds), with or without the record.

    Args:
      c_col: first column of a Toeplitz C.
      positive_sample: whether to draw from the distribution with the record.
      dataset_size: accepted for compatibility; the result does not depend on it.
    """
    del dataset_size
    pair = _pair_of(strategy, noise_multiplier, c_col)
    count = whole_number("num_samples", num_samples)
    rng = np.random.default_rng(seed)
    noise = noise_multiplier * rng.standard_normal((count, pair.width))
    return noise + pair.draw_shifts(count, rng) if positive_sample else noise


def compute_privacy_loss(
    strategy: SupportedStrategies,
    sample: np.ndarray,
    noise_multiplier: float,
    c_col: np.ndarray,
    aux: np.ndarray | None = None,
) -> np.ndarray:
    """Log of the ratio of the densities with and without the record. `aux` is not used."""
    del aux
    pair = _pair_of(strategy, noise_multiplier, c_col)
    outputs = np.asarray(sample, float)
    if outputs.ndim != 2 or outputs.shape[1] != pair.width:
        raise FixArgumentsError(
            f"sample has shape {outputs.shape}: pass the result of generate_sample, of shape "
            f"(samples, {pair.width})."
        )
    return pair.log_ratio(outputs, noise_multiplier)


def get_privacy_loss_sample(
    strategy: SupportedStrategies,
    noise_multiplier: float,
    c_col: np.ndarray,
    seed: Seed = None,
    positive_sample: bool = True,
    num_samples: int = 1,
    dataset_size: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `(losses, sample)`, with losses for `delta_from_epsilon_and_samples`."""
    sample = generate_sample(
        strategy, noise_multiplier, c_col, seed, positive_sample, num_samples, dataset_size
    )
    ratio = compute_privacy_loss(strategy, sample, noise_multiplier, c_col)
    return (ratio if positive_sample else -ratio), sample


@dataclasses.dataclass(frozen=True, eq=False)
class _BinShifts:
    """The shifts of a random bin are added to all steps."""

    shifts: np.ndarray  # (bins, steps)

    @property
    def width(self) -> int:
        return self.shifts.shape[1]

    def draw_shifts(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return self.shifts[rng.integers(len(self.shifts), size=count)]

    def log_ratio(self, outputs: np.ndarray, noise: float) -> np.ndarray:
        products = outputs @ self.shifts.T - np.sum(self.shifts**2, axis=1) / 2
        return scipy.special.logsumexp(products / noise**2, axis=1) - math.log(len(self.shifts))


@dataclasses.dataclass(frozen=True)
class _RoundShifts:
    """Each round is shifted by 1 with a fixed probability."""

    width: int
    probability: float

    def draw_shifts(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return (rng.random((count, self.width)) < self.probability).astype(float)

    def log_ratio(self, outputs: np.ndarray, noise: float) -> np.ndarray:
        if self.probability == 0:
            return np.zeros(len(outputs))
        exponent = (outputs - 0.5) / noise**2 + math.log(self.probability)
        absent = math.log1p(-self.probability) if self.probability < 1 else -math.inf
        return np.sum(np.logaddexp(exponent, absent), axis=1)


def _pair_of(
    strategy: SupportedStrategies, noise_multiplier: float, c_col: np.ndarray
) -> _BinShifts | _RoundShifts:
    """The dominating pair for a sampler and a matrix. Raises if none is proven."""
    positive_number("noise_multiplier", noise_multiplier, "because privacy losses need noise")
    column = np.asarray(c_col, float)
    if isinstance(strategy, BallsInBinsSampling):
        steps, cycle = strategy.iterations, strategy.cycle_length
        event: Any = balls_in_bins_event(
            noise_multiplier, steps, cycle_length=cycle, strategy=column
        )
        return _BinShifts(event.shifts())
    if isinstance(strategy, CyclicPoissonSampling) and strategy.truncated_batch_size is None:
        strategy.check_bands(whole_number("bands of c_col", len(np.trim_zeros(column, "b")), 1))
        rounds = strategy.participation().max_participations
        return _RoundShifts(rounds, strategy.sampling_prob)
    raise FixArgumentsError(
        f"{strategy}: pass BallsInBinsSampling, or CyclicPoissonSampling without truncation. For "
        "other samplers no dominating pair is known here: see bevel.accounting.event_of."
    )

"""Samples from the dominating pair of distributions of a run, and their privacy losses.

A sample has one number per step: noise, and with the record also its shifts `C u`, where u[t] is 1
at the steps that the record joins.

| sampler                 | the steps of the record                                             |
| ----------------------- | ------------------------------------------------------------------- |
| `BallsInBinsSampling`   | those of one random bin                                             |
| `CyclicPoissonSampling` | each step of its group with probability `sampling_prob`             |
| `BMinSepSampling`       | each step with probability `sampling_prob`, unless it rests         |

Noise is `noise_multiplier` times a standard normal, and shifts are in units of the largest column
norm of C, for a record whose contributions have norm 1. docs/accounting.md has the proofs.
"""

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np
import scipy.special

from bevel.accounting import balls_in_bins_event
from bevel.batch_selection import BallsInBinsSampling, BMinSepSampling, CyclicPoissonSampling
from bevel.checks import positive_number, whole_number
from bevel.errors import FixArgumentsError

SupportedStrategies: TypeAlias = BallsInBinsSampling | CyclicPoissonSampling | BMinSepSampling
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
    """Draws samples of shape (iterations, num_samples), with or without the record.

    Args:
      c_col: first column of a Toeplitz C.
      positive_sample: whether to draw from the distribution with the record.
      dataset_size: accepted for compatibility; the result does not depend on it.
    """
    del dataset_size
    pair = _pair_of(strategy, noise_multiplier, c_col)
    count = whole_number("num_samples", num_samples)
    rng = np.random.default_rng(seed)
    noise = noise_multiplier * rng.standard_normal((strategy.iterations, count))
    return noise + pair.draw_shifts(count, rng) if positive_sample else noise


def compute_privacy_loss(
    strategy: SupportedStrategies,
    sample: np.ndarray,
    noise_multiplier: float,
    c_col: np.ndarray,
    aux: np.ndarray | None = None,
) -> np.ndarray:
    """Log of the ratio of the densities with and without the record, of shape (num_samples,).

    `sample` is the result of `generate_sample`. None of its samplers needs `aux`.
    """
    if aux is not None:
        raise FixArgumentsError(
            "aux: generate_sample returns the samples alone, so pass no aux. Samples that were "
            "drawn elsewhere may come from another pair of distributions."
        )
    pair = _pair_of(strategy, noise_multiplier, c_col)
    outputs = np.asarray(sample, float)
    if outputs.ndim != 2 or len(outputs) != strategy.iterations:
        raise FixArgumentsError(
            f"sample has shape {outputs.shape}: pass the result of generate_sample, of shape "
            f"({strategy.iterations}, num_samples)."
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

    def draw_shifts(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return self.shifts[rng.integers(len(self.shifts), size=count)].T

    def log_ratio(self, outputs: np.ndarray, noise: float) -> np.ndarray:
        products = self.shifts @ outputs - np.sum(self.shifts**2, axis=1)[:, None] / 2
        return scipy.special.logsumexp(products / noise**2, axis=0) - math.log(len(self.shifts))


@dataclasses.dataclass(frozen=True, eq=False)
class _SeparatedUses:
    """The uses of the record form a Markov chain, and shift disjoint outputs.

    At each step in `open_steps` the record joins with a fixed probability, unless it joined less
    than `separation` steps ago. `starts` are the probabilities that it does not rest from step 0,
    1, ... on. As the columns of C at its uses are orthogonal, the density ratio of a pattern of
    uses is the product of the ratios of the single uses, and the mean over all patterns is a
    recursion from the last step to the first.
    """

    column: np.ndarray  # of norm 1
    open_steps: np.ndarray  # (steps,) of bool
    probability: float
    separation: int
    starts: np.ndarray

    def draw_shifts(self, count: int, rng: np.random.Generator) -> np.ndarray:
        steps = len(self.open_steps)
        shifts = np.zeros((steps, count))
        free_from = rng.choice(len(self.starts), size=count, p=self.starts)
        for t in np.flatnonzero(self.open_steps):
            joins = (free_from <= t) & (rng.random(count) < self.probability)
            free_from[joins] = t + self.separation
            window = shifts[t : t + len(self.column)]
            window += np.outer(self.column[: len(window)], joins)
        return shifts

    def log_ratio(self, outputs: np.ndarray, noise: float) -> np.ndarray:
        steps, count = outputs.shape
        joined, skipped = _log(self.probability), _log(1 - self.probability)
        # after[t] is the log of the mean density ratio of all uses from step t on, if the record
        # does not rest at step t.
        after = np.zeros((steps + max(self.separation, len(self.starts)), count))
        for t in reversed(range(steps)):
            after[t] = after[t + 1]
            if self.open_steps[t]:
                window = outputs[t : t + len(self.column)]
                shift = self.column[: len(window)]
                ratio = (shift @ window - shift @ shift / 2) / noise**2
                later = joined + ratio + after[t + self.separation]
                after[t] = np.logaddexp(skipped + after[t + 1], later)
        starts = np.array([_log(p) for p in self.starts])
        return scipy.special.logsumexp(after[: len(starts)] + starts[:, None], axis=0)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def _pair_of(
    strategy: SupportedStrategies, noise_multiplier: float, c_col: np.ndarray
) -> _BinShifts | _SeparatedUses:
    """The dominating pair for a sampler and a matrix. Raises if none is proven."""
    positive_number("noise_multiplier", noise_multiplier, "because privacy losses need noise")
    column = np.asarray(c_col, float)
    if isinstance(strategy, BallsInBinsSampling):
        steps, cycle = strategy.iterations, strategy.cycle_length
        event: Any = balls_in_bins_event(
            noise_multiplier, steps, cycle_length=cycle, strategy=column
        )
        return _BinShifts(event.shifts())
    known = isinstance(strategy, CyclicPoissonSampling | BMinSepSampling)
    if not known or strategy.truncated_batch_size is not None:
        raise FixArgumentsError(
            f"{strategy}: pass BallsInBinsSampling, or CyclicPoissonSampling or BMinSepSampling "
            "without truncation. For other samplers no dominating pair is known here: see "
            "bevel.accounting.event_of."
        )
    strategy.check_bands(whole_number("bands of c_col", len(np.trim_zeros(column, "b")), 1))
    column = np.abs(np.trim_zeros(column, "b"))[: strategy.iterations]
    column = column / np.linalg.norm(column)
    if isinstance(strategy, CyclicPoissonSampling):
        # The first group has the most rounds, and the longest columns in each.
        in_group = np.arange(strategy.iterations) % strategy.cycle_length == 0
        return _SeparatedUses(column, in_group, strategy.sampling_prob, 1, np.ones(1))
    always = np.ones(strategy.iterations, bool)
    starts = strategy.first_free_steps()
    return _SeparatedUses(column, always, strategy.sampling_prob, strategy.min_sep, starts)

"""Describes what a run releases as a dp-accounting event.

In every event the noise multiplier is the standard deviation of the noise divided by the bound on
*one record's* contribution (the clip norm, times the largest column norm of C for correlated
noise), under any neighbouring relation. `bevel.accounting.epsilon` and related functions convert it
to the convention of each accountant: see accountants.py.

Use `event_of` to get the event of a sampler.
"""

import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from bevel.accounting.arguments import checked_noise
from bevel.accounting.mixture_events import BallsInBinsDpEvent, RandomAllocationDpEvent
from bevel.checks import (
    as_float,
    flag,
    instance,
    is_real,
    probability,
    reals,
    shown,
    whole_number,
)
from bevel.errors import FixArgumentsError


def composed(event: DpEvent, count: int) -> DpEvent:
    return event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)


def gaussian_event(noise_multiplier: float, participations: int = 1) -> DpEvent:
    """Gaussian noise without amplification, for a record that is used `participations` times.

    The uses must not share noise: with correlated noise they must be at least as many steps apart
    as C has bands. If the noise is scaled to the sensitivity of the whole run, however it is
    correlated, `participations` is 1.
    """
    event = dp_accounting.GaussianDpEvent(checked_noise(noise_multiplier))
    return composed(event, whole_number("participations", participations))


def zcdp_event(noise_multiplier: float, participations: int) -> DpEvent:
    """Zero-concentrated DP, rho = participations / (2 noise_multiplier^2), without amplification.

    Holds for Gaussian and discrete Gaussian noise. Only the RDP accountant supports it.
    """
    noise, count = checked_noise(noise_multiplier), whole_number("participations", participations)
    rho = _rho(noise, count)
    if rho == math.inf:
        return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.ZCDpEvent(rho=rho)


def _rho(noise: float, count: int = 1) -> float:
    """The zCDP of Gaussian mechanisms: infinite without noise, or with hardly any."""
    try:
        return count / (2 * noise**2)
    except OverflowError:
        return 0.0
    except ZeroDivisionError:
        return math.inf


def dpsgd_event(
    noise_multiplier: float, iterations: int, *, sampling_prob: float, use_zcdp: bool = False
) -> DpEvent:
    """DP-SGD: a Poisson-sampled Gaussian mechanism at every step.

    `use_zcdp=True` states the zCDP of the mechanism, which holds for discrete Gaussian noise, too.
    No theorem amplifies it by sampling, so `bevel.accounting` ignores the sampling around it.
    Without noise, the event of a step is non-private.
    """
    count = whole_number("iterations", iterations)
    prob = probability("sampling_prob", sampling_prob)
    event = _mechanism_event(noise_multiplier, use_zcdp)
    if prob == 1:
        return composed(event, count)
    return composed(dp_accounting.PoissonSampledDpEvent(prob, event), count)


def _mechanism_event(noise_multiplier: float, use_zcdp: bool) -> DpEvent:
    """One step without sampling."""
    noise, use_zcdp = checked_noise(noise_multiplier), flag("use_zcdp", use_zcdp)
    rho = _rho(noise)
    if noise == 0 or (use_zcdp and rho == math.inf):
        return dp_accounting.NonPrivateDpEvent()
    if use_zcdp:
        return dp_accounting.ZCDpEvent(rho=rho)
    return dp_accounting.GaussianDpEvent(noise)


def fixed_dpsgd_event(
    noise_multiplier: float,
    iterations: int,
    *,
    dataset_size: int,
    batch_size: int,
    replace: bool = False,
    use_zcdp: bool = False,
) -> DpEvent:
    """DP-SGD with batches of a fixed size. Without replacement, RDP bounds it under replace-one.

    With `replace=True` you get an event, but no accountant supports it, because a record that is in
    a batch several times exceeds the bound for one record. `use_zcdp` as in `dpsgd_event`.
    """
    size = whole_number("dataset_size", dataset_size)
    count = whole_number("iterations", iterations)
    flag("replace", replace)
    if whole_number("batch_size", batch_size) > size and not replace:
        raise FixArgumentsError(
            f"batch_size={batch_size} of {size} examples: pass a batch_size of at most {size}."
        )
    kind = (
        dp_accounting.SampledWithReplacementDpEvent
        if replace
        else dp_accounting.SampledWithoutReplacementDpEvent
    )
    event = _mechanism_event(noise_multiplier, use_zcdp)
    return composed(kind(size, int(batch_size), event), count)


def truncated_dpsgd_event(
    noise_multiplier: float,
    iterations: int,
    *,
    sampling_prob: float,
    num_examples: int,
    truncated_batch_size: int,
) -> DpEvent:
    """DP-SGD with a cap on the batch size: larger batches keep a random subset."""
    event = dp_accounting.TruncatedSubsampledGaussianDpEvent(
        dataset_size=whole_number("num_examples", num_examples),
        sampling_probability=probability("sampling_prob", sampling_prob),
        truncated_batch_size=whole_number("truncated_batch_size", truncated_batch_size),
        noise_multiplier=checked_noise(noise_multiplier),
    )
    return composed(event, whole_number("iterations", iterations))


def _rounds(iterations: int, num_bands: int) -> int:
    """Returns how often an example can be used at most, once in `num_bands` steps."""
    bands = whole_number("num_bands", num_bands)
    return math.ceil(whole_number("iterations", iterations) / bands)


def amplified_bandmf_event(
    noise_multiplier: float, iterations: int, *, num_bands: int, sampling_prob: float
) -> DpEvent:
    """BandMF with cyclic Poisson sampling: one sampled Gaussian mechanism per round of the cycle.

    `num_bands` is the length of the cycle, which must be at least the number of bands of C.
    """
    return dpsgd_event(
        noise_multiplier, _rounds(iterations, num_bands), sampling_prob=sampling_prob
    )


def truncated_amplified_bandmf_event(
    noise_multiplier: float,
    iterations: int,
    *,
    num_bands: int,
    sampling_prob: float,
    largest_group_size: int,
    truncated_batch_size: int,
) -> DpEvent:
    """BandMF with cyclic Poisson sampling and a cap on the batch size.

    All groups must have `largest_group_size` examples, as in an equal split. The event is not
    monotone in the group size, so the event of the largest group does not bound the others.
    """
    return truncated_dpsgd_event(
        noise_multiplier,
        _rounds(iterations, num_bands),
        sampling_prob=sampling_prob,
        num_examples=largest_group_size,
        truncated_batch_size=truncated_batch_size,
    )


def balls_in_bins_event(
    noise_multiplier: float,
    iterations: int,
    *,
    cycle_length: int,
    strategy: Sequence[float] | np.ndarray = (1.0,),
) -> DpEvent:
    """Balls-in-bins batches with noise C^-1 z: bounded by Monte Carlo sampling (monte_carlo.py).

    `strategy` is the matrix C, or its first column if C is Toeplitz. The default is the identity.
    """
    count = whole_number("iterations", iterations)
    hint = "pass the coefficients of a Toeplitz matrix, or its rows"
    matrix = reals("strategy", strategy, (1, 2), hint).astype(float)
    valid = matrix.size and matrix.any()
    if not valid or (matrix.ndim == 2 and matrix.shape != (count, count)):
        raise FixArgumentsError(
            f"strategy has shape {matrix.shape}: pass the coefficients of a Toeplitz matrix, or a "
            f"matrix of shape ({count}, {count}), with finite entries that are not all zero."
        )
    if matrix.ndim == 2 and np.triu(matrix, 1).any():
        raise FixArgumentsError(
            "strategy is not lower triangular, so noise would depend on later steps. Pass a lower "
            "triangular matrix."
        )
    entries = tuple(map(tuple, matrix.tolist())) if matrix.ndim == 2 else tuple(matrix.tolist())
    return BallsInBinsDpEvent(
        checked_noise(noise_multiplier), count, whole_number("cycle_length", cycle_length), entries
    )


def random_allocation_event(
    noise_multiplier: float, iterations: int, *, total_participations: int
) -> DpEvent:
    """Each example takes part in exactly `total_participations` steps: bounded by Monte Carlo."""
    count = whole_number("iterations", iterations)
    uses = whole_number("total_participations", total_participations, 0)
    if uses == 0:
        return dp_accounting.NoOpDpEvent()
    if uses > count:
        raise FixArgumentsError(
            f"total_participations={uses} of {count} iterations: an example can join each step at "
            f"most once, so pass at most {count}."
        )
    return RandomAllocationDpEvent(checked_noise(noise_multiplier), count, uses)


def private_selection_event(event: DpEvent, expected_runs: float, *, shape: float) -> DpEvent:
    """The best of a random number of runs, of which nothing else is released.

    Each run is independent of the others and satisfies `event`. The number of runs is secret and
    has a truncated negative binomial distribution with this shape: 0 is the logarithmic and 1 the
    geometric distribution, and infinity the Poisson distribution, which is not truncated. Which of
    the released runs is the best may depend on the data through the outputs of the runs only.
    """
    if not (is_real(expected_runs) and 1 < as_float(expected_runs) < math.inf):
        raise FixArgumentsError(
            f"expected_runs={shown(expected_runs)}: pass a number above 1. With one run nothing is "
            "selected, and its event is that of the run."
        )
    # A finite number that is too large for a float would mean another distribution.
    finite = is_real(shape) and math.isfinite(as_float(shape))
    if not ((finite and shape >= 0) or (is_real(shape) and shape == math.inf)):
        raise FixArgumentsError(
            f"shape={shown(shape)}: pass 0 (logarithmic), 1 (geometric), infinity (Poisson), or "
            "another number of at least 0."
        )
    instance("event", event, DpEvent, "a dp-accounting event, that of one run")
    if isinstance(event, BallsInBinsDpEvent | RandomAllocationDpEvent):
        raise FixArgumentsError(
            f"private selection among runs of {type(event).__name__}: no bound is proven here for "
            "events that are bounded by Monte Carlo sampling. Use a sampler with a closed form, "
            "such as Poisson sampling."
        )
    return RepeatAndSelectDpEvent(event, float(expected_runs), float(shape))

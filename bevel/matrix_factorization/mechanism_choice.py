"""Chooses DP-SGD, BandMF, BLT or BISR (banded inverse square root) by error at equal privacy."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from bevel.checks import finite_number, one_of, whole_number
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import (
    buffered_toeplitz,
    calibration,
    sensitivity,
    streaming_matrix,
    toeplitz,
    tree_aggregation,
)
from bevel.matrix_factorization.checks import checked_length
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix

REDUCTIONS: dict[str, Callable[[Any], Any]] = {"mean": jnp.mean, "max": jnp.max}
# At most this many BLT buffers are tried: with five, the loss is within 1% of optimal at 1e6 steps.
MOST_BLT_BUFFERS = 8


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mechanism with its parameters, its memory and its error.

    Attributes:
      name: name of the mechanism.
      detail: a description of its parameters.
      buffers: copies of the gradient in the noise state.
      state_bytes: bytes of the noise state on one device.
      error: square root of the mean (or largest) squared error of the prefix sums of contributions
        of norm at most 1, at the requested privacy.
      stddev: standard deviation of the independent noise z for a clip norm of 1. Multiply it by
        the clip norm for `matrix_factorization_privatizer(stddev=...)`.
      sampling: how batches must be sampled for the privacy to hold.
      make_noising_matrix: returns C^-1 as a StreamingMatrix; None for a baseline.
    """

    name: str
    detail: str
    buffers: int
    state_bytes: int
    error: float
    stddev: float
    sampling: str
    make_noising_matrix: Callable[[], StreamingMatrix[Any]] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    def noising_matrix(self) -> StreamingMatrix[Any]:
        """C^-1, for `noise_addition.matrix_factorization_privatizer`."""
        if self.make_noising_matrix is None:
            raise FixArgumentsError(
                f"{self.name} is a baseline without a streaming form: use another row."
            )
        return self.make_noising_matrix()


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen mechanism, the reasons, and all candidates in order of error."""

    chosen: Candidate
    why: str
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        rows = [("mechanism", "error", "stddev", "bytes of state", "batches")]
        for c in self.candidates:
            mark = "*" if c is self.chosen else " "
            label = f"{mark} {c.name}, {c.detail}"
            rows.append(
                (label, f"{c.error:.4g}", f"{c.stddev:.4g}", f"{c.state_bytes}", c.sampling)
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, self.why])


# The name, detail, buffers and make_noising_matrix of a candidate.
_Mechanism = tuple[str, str, int, Callable[[], StreamingMatrix[Any]] | None]


@dataclasses.dataclass(frozen=True)
class _Setting:
    """The arguments that all candidates share."""

    n: int
    participations: int
    min_sep: int
    most_buffers: int
    bytes_per_buffer: int
    error: str
    target: tuple[float, float] | None  # epsilon and delta

    @property
    def separated_sampling(self) -> str:
        if self.participations == 1:
            return "each example once"
        steps = f"{self.min_sep} step{'s' * (self.min_sep > 1)}"
        return f"each example at most {self.participations} times, {steps} apart"

    @functools.cached_property
    def unamplified_noise(self) -> float:
        """Noise per unit of sensitivity; 1 without a target, to compare at equal privacy."""
        return 1.0 if self.target is None else calibration.gaussian_noise_multiplier(*self.target)

    def candidate(
        self, mechanism: _Mechanism, squared_error: Any, sensitivity_squared: Any
    ) -> Candidate:
        """A candidate without amplification: noise is proportional to sensitivity."""
        stddev = self.unamplified_noise * math.sqrt(sensitivity_squared)
        return self.with_noise(mechanism, squared_error, stddev, self.separated_sampling)

    def with_noise(
        self, mechanism: _Mechanism, squared_error: Any, stddev: float, sampling: str
    ) -> Candidate:
        name, detail, buffers, make = mechanism
        error = stddev * math.sqrt(squared_error)
        state = buffers * self.bytes_per_buffer
        return Candidate(name, detail, buffers, state, error, stddev, sampling, make)


def choose_mechanism(
    n: int,
    participations: int,
    memory_per_device: int,
    *,
    params_per_device: int,
    min_sep: int | None = None,
    error: str = "mean",
    epsilon: float | None = None,
    delta: float | None = None,
    tolerance: float = 0.01,
) -> Choice:
    """Compares DP-SGD, BandMF, BLT and BISR at equal privacy, and chooses one that fits.

    Mechanisms whose noise state needs more than `memory_per_device` are excluded. The mechanism
    with the smallest state within `tolerance` of the smallest error is chosen. The table also lists
    tree aggregation, as a baseline.

    Without a target, candidates have equal Gaussian differential privacy for known, separated
    participations, and errors are per unit of noise. With `epsilon` and `delta`, DP-SGD and BandMF
    are listed both with (cyclic) Poisson sampling, for which amplification is proven, and without;
    BLT and BISR are listed without.

    Args:
      n: number of steps.
      participations: largest number of steps that one example joins (for Poisson sampling: the
        average number).
      memory_per_device: bytes that the noise state may take on one device.
      params_per_device: number of gradient elements on one device; buffers are float32.
      min_sep: minimum distance between these steps. The default, n // participations, is that of
        epochs with the same order.
      error: 'mean' or 'max' error of the prefix sums.
      epsilon, delta: privacy target for adding or removing one example; pass both or neither.
      tolerance: relative increase of the error that is acceptable for a smaller state.

    Cost: some seconds for n = 1e4, more with a target or for longer runs (each optimizer step of
    BandMF takes O(n bands)).
    """
    setting = _checked_setting(
        n, participations, memory_per_device, params_per_device, min_sep, error, (epsilon, delta)
    )
    finite_number("tolerance", tolerance, "a fraction such as 0.01", 0)
    families = (_dp_sgd, _band_mf, _blt, _bisr)
    runnable = [c for family in families for c in family(setting)]
    fitting = [c for c in runnable if c.buffers <= setting.most_buffers]
    chosen, best = chosen_and_best(fitting, tolerance)
    table = sorted([*fitting, _tree(setting)], key=lambda c: c.error)
    return Choice(chosen, _reasons(setting, chosen, best, fitting), tuple(table))


def chosen_and_best(fitting: list[Candidate], tolerance: float) -> tuple[Candidate, Candidate]:
    """The candidate with the least state within `tolerance` of the best error, and the best one."""
    best = min(fitting, key=lambda c: c.error)
    near = [c for c in fitting if c.error <= (1 + tolerance) * best.error]
    return min(near, key=lambda c: (c.state_bytes, c.error)), best


def _checked_setting(
    n: int,
    participations: int,
    memory: int,
    params: int,
    min_sep: int | None,
    error: str,
    target: tuple[float | None, float | None],
) -> _Setting:
    n = checked_length(n)
    participations = whole_number("participations", participations)
    if participations > n:
        raise FixArgumentsError(
            f"participations={participations}: there are only n={n} steps, so pass at most {n}."
        )
    min_sep = n // participations if min_sep is None else whole_number("min_sep", min_sep)
    fit = sensitivity.minsep_true_max_participations(n, min_sep)
    if participations > fit:
        raise FixArgumentsError(
            f"participations={participations} with min_sep={min_sep}: only {fit} fit into n={n} "
            "steps. Pass fewer participations, or a smaller min_sep."
        )
    one_of("error", error, tuple(REDUCTIONS))
    if (target[0] is None) != (target[1] is None):
        raise FixArgumentsError(f"epsilon={target[0]}, delta={target[1]}: pass both or neither.")
    bytes_per_buffer = 4 * whole_number("params_per_device", params)
    memory = whole_number("memory_per_device", memory, least=0)
    return _Setting(
        n=n,
        participations=participations,
        min_sep=min_sep,
        most_buffers=memory // bytes_per_buffer,
        bytes_per_buffer=bytes_per_buffer,
        error=error,
        target=None if target[0] is None or target[1] is None else (target[0], target[1]),
    )


def _dp_sgd(setting: _Setting) -> Iterator[Candidate]:
    """Independent noise, without state."""
    n, times = setting.n, setting.participations
    squared = float(n if setting.error == "max" else (n + 1) / 2)
    mechanism = "DP-SGD", "independent noise", 0, streaming_matrix.identity
    yield setting.candidate(mechanism, squared, times)
    if setting.target is not None:
        stddev = calibration.poisson_noise_multiplier(*setting.target, times / n, n)
        sampling = f"Poisson, probability {times / n:.3g}"
        yield setting.with_noise(mechanism, squared, stddev, sampling)


def _band_mf(setting: _Setting) -> Iterator[Candidate]:
    """Banded Toeplitz matrices C. The number of bands doubles up to the largest that fits."""
    n, times = setting.n, setting.participations
    reduction = REDUCTIONS[setting.error]
    for bands in doubling(2, min(setting.most_buffers + 1, setting.min_sep, n)):
        coefs = toeplitz.optimize_banded_toeplitz(n, bands, reduction_fn=reduction)
        squared = float(toeplitz.loss(coefs, n, reduction))
        make = functools.partial(toeplitz.inverse_as_streaming_matrix, coefs)
        mechanism = "BandMF", f"{bands} bands", bands - 1, make
        yield setting.candidate(mechanism, squared, times)
        if setting.target is not None:
            prob = min(1.0, bands * times / n)
            stddev = calibration.poisson_noise_multiplier(*setting.target, prob, -(-n // bands))
            sampling = f"cyclic Poisson, {bands} groups, probability {prob:.3g}"
            yield setting.with_noise(mechanism, squared, stddev, sampling)


def _blt(setting: _Setting) -> Iterator[Candidate]:
    """Buffered Toeplitz matrices C. Buffers are added as long as they help."""
    loss_fn = buffered_toeplitz.LossFn.build_min_sep(
        setting.n, setting.error, setting.min_sep, setting.participations
    )
    last = math.inf
    for count in range(1, min(setting.most_buffers, MOST_BLT_BUFFERS) + 1):
        strategy, loss = buffered_toeplitz.optimize_loss(loss_fn, count)
        squared_sensitivity = float(loss_fn.sensitivity_squared(strategy))
        squared = float(loss) / squared_sensitivity
        detail = f"{count} buffer{'s' * (count > 1)}"
        mechanism = "BLT", detail, count, strategy.inverse_as_streaming_matrix
        yield setting.candidate(mechanism, squared, squared_sensitivity)
        if loss > 0.999 * last:
            break
        last = float(loss)


def _bisr(setting: _Setting) -> Iterator[Candidate]:
    """Banded inverse square roots. The number of bands doubles up to the largest that fits."""
    n = setting.n
    for bands in doubling(2, min(setting.most_buffers + 1, n)):
        coefs = toeplitz.banded_inverse_square_root_noising_coefs(bands)
        errors = toeplitz.per_query_error(noising_coef=coefs, n=n)
        squared_sensitivity = toeplitz.compute_banded_inverse_sensitivity_squared(
            n, coefs, setting.min_sep, setting.participations
        )
        squared = np.max(errors) if setting.error == "max" else np.mean(errors)
        make = functools.partial(toeplitz.as_streaming_matrix, coefs)
        mechanism = "BISR", f"{bands} bands", bands - 1, make
        yield setting.candidate(mechanism, squared, squared_sensitivity)


def _tree(setting: _Setting) -> Candidate:
    errors = tree_aggregation.per_query_error(setting.n)
    squared = np.max(errors) if setting.error == "max" else np.mean(errors)
    squared_sensitivity = tree_aggregation.sensitivity_squared(
        setting.n, setting.min_sep, setting.participations
    )
    levels = tree_aggregation.num_levels(setting.n)
    detail = f"{levels} level{'s' * (levels > 1)} (baseline)"
    mechanism = "tree aggregation", detail, levels, None
    return setting.candidate(mechanism, squared, squared_sensitivity)


def doubling(first: int, last: int) -> list[int]:
    """first, 2 * first, 4 * first, ... below last, then last. Empty if last is below first."""
    powers = [first << k for k in range(last.bit_length()) if first << k < last]
    return [*powers, last] if last >= first else []


def _reasons(
    setting: _Setting, chosen: Candidate, best: Candidate, fitting: list[Candidate]
) -> str:
    fits = {
        0: "no copy of the gradient fits into the given memory, so noise is independent",
        1: "one copy of the gradient fits into the given memory",
    }
    many = f"{setting.most_buffers} copies of the gradient fit into the given memory"
    limit = fits.get(setting.most_buffers, many)
    sentences = [
        f"{chosen.name} ({chosen.detail}) has the smallest {setting.error} error at equal privacy "
        f"among the mechanisms that fit: {limit}."
        if chosen is best
        else f"{chosen.name} ({chosen.detail}) has {chosen.state_bytes} bytes of state and is "
        f"within {chosen.error / best.error - 1:.2%} of the smallest error, that of {best.name} "
        f"({best.detail}) with {best.state_bytes} bytes: {limit}."
    ]
    others: dict[str, Candidate] = {}
    for c in sorted(fitting, key=lambda c: c.error):
        if c.name != chosen.name:
            others.setdefault(c.name, c)
    for c in others.values():
        sentences.append(f"{c.name} ({c.detail}) has {c.error / chosen.error:.3g} times its error.")
    sentences.append(f"Its privacy holds only for this sampling: {chosen.sampling}.")
    return " ".join(sentences)

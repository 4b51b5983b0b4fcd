"""Noise multipliers for a privacy target, computed by dp-accounting."""

import math

from bevel.checks import as_float, finite_number, is_real, positive_number, shown, whole_number
from bevel.errors import FixArgumentsError


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Noise standard deviation per unit of sensitivity of one Gaussian release.

    A matrix mechanism is one such release, of C g, for any number of steps.
    """
    import dp_accounting

    _checked_target(epsilon, delta)
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def poisson_noise_multiplier(
    epsilon: float, delta: float, sampling_prob: float, steps: int
) -> float:
    """The same for `steps` Gaussian releases, each of a Poisson sample of the examples.

    The target holds for adding or removing one example. Uses privacy loss distributions with a grid
    of epsilon / 1000, which overstates the noise slightly; Rényi accounting brackets the search.
    """
    import dp_accounting
    from dp_accounting import pld, rdp

    _checked_target(epsilon, delta)
    steps = whole_number("steps", steps)
    hint = "a number in (0, 1]"
    positive_number(
        "sampling_prob", finite_number("sampling_prob", sampling_prob, hint, 0, 1), hint
    )
    if sampling_prob == 1:
        return math.sqrt(steps) * gaussian_noise_multiplier(epsilon, delta)

    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        release = dp_accounting.GaussianDpEvent(noise_multiplier)
        sampled = dp_accounting.PoissonSampledDpEvent(sampling_prob, release)
        return dp_accounting.SelfComposedDpEvent(sampled, steps)

    orders = [*range(2, 65), 128, 256, 512]  # fractional orders may fail to converge
    upper = dp_accounting.calibrate_dp_mechanism(
        lambda: rdp.RdpAccountant(orders), event, epsilon, delta, tol=1e-3
    )
    try:
        return float(
            dp_accounting.calibrate_dp_mechanism(
                lambda: pld.PLDAccountant(value_discretization_interval=1e-3 * epsilon),
                event,
                epsilon,
                delta,
                bracket_interval=dp_accounting.ExplicitBracketInterval(0.5 * upper, upper),
                tol=1e-4 * upper,
            )
        )
    except dp_accounting.NoBracketIntervalFoundError:
        return float(upper)  # the grid is too coarse here; the Rényi bound is valid too


def _checked_target(epsilon: float, delta: float) -> None:
    known = is_real(epsilon) and is_real(delta)
    if not (known and 0 < as_float(epsilon) < math.inf and 0 < delta < 1):
        raise FixArgumentsError(
            f"epsilon={shown(epsilon)}, delta={shown(delta)}: pass a positive epsilon and a delta "
            "in (0, 1)."
        )

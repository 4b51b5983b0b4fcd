"""Noise for a privacy target, from dp-accounting. All NumPy."""

import math

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Standard deviation, beside the sensitivity, of one Gaussian release that is private enough.

    A matrix mechanism is one such release of C g, whatever n is.
    """
    import dp_accounting

    _checked_target(epsilon, delta)
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def poisson_noise_multiplier(
    epsilon: float, delta: float, sampling_prob: float, steps: int
) -> float:
    """The same for `steps` Gaussian releases, each of a Poisson sample of the examples.

    For adding or removing one example. By privacy loss distributions on a grid of a thousandth of
    epsilon, which overstates the noise by little; Renyi accounting says where to look.
    """
    import dp_accounting
    from dp_accounting import pld, rdp

    _checked_target(epsilon, delta)
    steps = whole_number("steps", steps)
    if not 0 < sampling_prob <= 1:
        raise FixArgumentsError(f"sampling_prob={sampling_prob!r}: write a number in (0, 1].")
    if sampling_prob == 1:
        return math.sqrt(steps) * gaussian_noise_multiplier(epsilon, delta)

    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        release = dp_accounting.GaussianDpEvent(noise_multiplier)
        sampled = dp_accounting.PoissonSampledDpEvent(sampling_prob, release)
        return dp_accounting.SelfComposedDpEvent(sampled, steps)

    orders = [*range(2, 65), 128, 256, 512]  # whole numbers: others may fail to converge
    enough = dp_accounting.calibrate_dp_mechanism(
        lambda: rdp.RdpAccountant(orders), event, epsilon, delta, tol=1e-3
    )
    try:
        return float(
            dp_accounting.calibrate_dp_mechanism(
                lambda: pld.PLDAccountant(value_discretization_interval=1e-3 * epsilon),
                event,
                epsilon,
                delta,
                bracket_interval=dp_accounting.ExplicitBracketInterval(0.5 * enough, enough),
                tol=1e-4 * enough,
            )
        )
    except dp_accounting.NoBracketIntervalFoundError:
        return float(enough)  # the grid is too coarse here: Renyi accounting is a proof as well


def _checked_target(epsilon: float, delta: float) -> None:
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise FixArgumentsError(
            f"epsilon={epsilon!r}, delta={delta!r}: write a positive epsilon and a delta in (0, 1)."
        )

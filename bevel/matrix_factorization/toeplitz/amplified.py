"""The number of bands and the noise of BandMF with Poisson-sampled batches."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.calibration import poisson_noise_multiplier
from bevel.matrix_factorization.checks import checked_length
from bevel.matrix_factorization.optimization import jax_enable_x64
from bevel.matrix_factorization.toeplitz.banded_optimum import optimize_banded_toeplitz
from bevel.matrix_factorization.toeplitz.error import Reduction, loss


@jax_enable_x64
def optimize_coefs_for_amplifications(
    n: int,
    *,
    dataset_size: int,
    expected_batch_size: int,
    epsilon: float,
    delta: float,
    max_optimizer_steps: int = 250,
    reduction_fn: Reduction = jnp.mean,
) -> tuple[jax.Array, float]:
    """Finds the bands, coefficients and noise with the smallest error for a privacy target.

    Examples are split into as many groups as there are bands, and step i takes a Poisson sample of
    group i % bands. An example then joins steps that are `bands` apart, whose columns do not
    overlap, so the privacy is that of ceil(n / bands) sampled Gaussian releases (Choquette-Choo et
    al., 2023), for adding or removing one example. More bands have a smaller error at equal noise,
    but less amplification. Powers of two are tried until the error has risen twice.

    Args:
      n: number of steps.
      dataset_size, expected_batch_size: their quotient limits the number of bands.
      epsilon, delta: the privacy target.
      max_optimizer_steps, reduction_fn: as in `optimize_banded_toeplitz`.

    Returns:
      The coefficients, of norm 1, and the standard deviation of the noise for contributions of norm
      1, which is the noise multiplier of `amplified_bandmf_event`.
    """
    n = checked_length(n)
    size = whole_number("dataset_size", dataset_size)
    batch = whole_number("expected_batch_size", expected_batch_size)
    if batch > size:
        raise FixArgumentsError(
            f"expected_batch_size={batch} is above dataset_size={size}: pass at most {size}."
        )
    max_bands = min(n, size // batch)
    best: Any = None
    least, rises = math.inf, 0
    for bands in sorted({*(1 << k for k in range(max_bands.bit_length())), max_bands}):
        sampling_prob = batch / (size // bands)
        stddev = poisson_noise_multiplier(epsilon, delta, sampling_prob, -(-n // bands))
        coefs = optimize_banded_toeplitz(
            n, bands, max_optimizer_steps=max_optimizer_steps, reduction_fn=reduction_fn
        )
        error = stddev**2 * float(loss(coefs, n, reduction_fn))
        if error < least:
            best, least, rises = (coefs, stddev), error, 0
        else:
            rises += 1
        if rises == 2:
            break
    return best

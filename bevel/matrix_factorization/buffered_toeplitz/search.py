"""Optimises BLTs and the number of their buffers.

Losses are computed by JAX in float64 and minimised by SciPy's L-BFGS. Results are NumPy arrays.
"""

from typing import Any

import jax
import numpy as np

from bevel.checks import finite_number, instance
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.buffered_toeplitz.blt import BufferedToeplitz, checked_buffers
from bevel.matrix_factorization.buffered_toeplitz.loss import LossFn
from bevel.matrix_factorization.buffered_toeplitz.parameterization import Parameterization
from bevel.matrix_factorization.optimization import jax_enable_x64
from bevel.matrix_factorization.optimization import optimize as minimize

# The loss is a few scalars, so optimising its machine code takes longer than running it.
COMPILED_QUICKLY = {"xla_backend_optimization_level": 0}


def get_init_blt(
    num_buffers: int = 3, init_blt: BufferedToeplitz | None = None
) -> BufferedToeplitz:
    """A starting point: `init_blt`, or a rational approximation with `num_buffers`."""
    if init_blt is None:
        return BufferedToeplitz.from_rational_approx_to_sqrt_x(num_buffers)
    instance("init_blt", init_blt, BufferedToeplitz, "a BufferedToeplitz, or None")
    init_blt.validate()
    if len(init_blt.buf_decay) != num_buffers:
        raise FixArgumentsError(
            f"init_blt has {len(init_blt.buf_decay)} buffers but num_buffers is {num_buffers}: "
            "pass the same number."
        )
    return init_blt


@jax_enable_x64
def optimize_loss(
    loss_fn: LossFn,
    num_buffers: int = 1,
    init_blt: BufferedToeplitz | None = None,
    parameterization: Parameterization | None = None,
    **kwargs: Any,
) -> tuple[BufferedToeplitz, Any]:
    """Finds the best BLT with `num_buffers`, and returns it with its loss.

    Without `init_blt` it starts from the best of a few rational approximations, because the best
    spacing of the decays depends on the number of steps. Decays and scales of the result are exact
    in float32. A float32 stream therefore multiplies by exactly the matrix whose sensitivity was
    computed, however close to 1 a decay is.

    `kwargs` are passed to `optimization.optimize`: max_optimizer_steps, callback, optimizer.
    """
    count = checked_buffers(num_buffers)
    if count == 0:
        identity = BufferedToeplitz.build([], [])
        return identity, loss_fn.loss(identity)
    parameterization = parameterization or Parameterization.buf_decay_pair()
    loss_and_grad = jax.value_and_grad(parameterization.get_loss_fn(loss_fn))
    loss_of_params = jax.jit(loss_and_grad, compiler_options=COMPILED_QUICKLY)
    starts = _rational_starts(count) if init_blt is None else [get_init_blt(count, init_blt)]
    params = min(
        (parameterization.params_from_blt(blt) for blt in starts),
        key=lambda params: float(np.nan_to_num(loss_of_params(params)[0], nan=np.inf)),
    )
    params = minimize(loss_of_params, params, grad=True, **kwargs)
    blt, _ = parameterization.blt_and_inverse_from_params(params)
    blt = in_float32(blt)
    return blt, loss_fn.loss(blt)


def in_float32(blt: BufferedToeplitz) -> BufferedToeplitz:
    """Rounds a BLT to float32 values; scales are rounded down, so their sum does not grow."""
    theta, omega = blt.as_floats()
    scale = omega.astype(np.float32)
    scale = np.where(scale > omega, np.nextafter(scale, np.float32(0)), scale)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    return BufferedToeplitz.build(theta.astype(np.float32), scale)


def _rational_starts(count: int) -> list[BufferedToeplitz]:
    """Rational approximations for runs from a few steps to about 1e9."""
    rational = BufferedToeplitz.from_rational_approx_to_sqrt_x
    widest = min(6.4, 20 / max(count - 2, 1))
    return [rational(count, buf_decay_scale=scale) for scale in np.geomspace(0.4, widest, 8)]


@jax_enable_x64
def optimize(
    *,
    n: int,
    min_sep: int = 1,
    max_participations: int | None = 1,
    error: str = "max",
    min_buffers: int = 0,
    max_buffers: int = 10,
    rtol: float = 1.01,
    **kwargs: Any,
) -> BufferedToeplitz:
    """Finds the best BLT for n steps, and adds buffers only while they reduce the loss enough.

    Args:
      n: number of steps. The cost grows with log(n) and with the number of participations.
      min_sep, max_participations: the steps of an example are at least `min_sep` apart. One
        participation by default; None allows as many as fit.
      error: 'max' or 'mean' squared error of the prefix sums.
      min_buffers, max_buffers: numbers of buffers to try. Each buffer is one copy of the gradient.
      rtol: buffers are added as long as each divides the loss by at least this.
      kwargs: max_optimizer_steps, callback, optimizer.
    """
    fewest_buffers = checked_buffers(min_buffers, "min_buffers")
    most_buffers = checked_buffers(max_buffers, "max_buffers", fewest_buffers)
    rtol = finite_number("rtol", rtol, "such as 1.01", 1)
    loss_fn = LossFn.build_min_sep(n, error, min_sep, max_participations)
    best, best_loss = optimize_loss(loss_fn, fewest_buffers, **kwargs)
    for count in range(fewest_buffers + 1, most_buffers + 1):
        blt, loss = optimize_loss(loss_fn, count, **kwargs)
        if best_loss < rtol * loss:
            break
        best, best_loss = blt, loss
    return best

"""Adam with the noise variance subtracted from its second moments.

For a gradient g + n, with noise n of mean 0 and variance v that is independent of g, the expected
square is g^2 + v. With DP noise v is known, and usually much larger than g^2. Adam then divides all
parameters by nearly the same number and no longer adapts, so these optimizers subtract v
(Tang, Shpilevskiy, Lécuyer 2023, arXiv:2312.14334).

Second moments are an average over past steps, with weights that decay by b2. If the variance
changes between steps, as with correlated noise, the same average of the variances is subtracted.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bevel.errors import FixArgumentsError
from bevel.precision import accumulation_dtype


class _ScaleByDPAdamState(NamedTuple):
    """Moments of the noised gradients, and the second moment of the noise."""

    count: jax.Array  # type: ignore[assignment]  # same name as in optax
    mu: optax.Updates
    nu: optax.Updates
    noise_nu: jax.Array


def dp_adam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    noise_stddev: float,
    row_norms: jax.typing.ArrayLike | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    floor: float = 0.05,
    mu_dtype: jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """`optax.adam` for noised gradients: `scale_by_dp_adam` with a learning rate."""
    adam = scale_by_dp_adam(
        noise_stddev=noise_stddev,
        row_norms=row_norms,
        b1=b1,
        b2=b2,
        eps=eps,
        eps_root=eps_root,
        floor=floor,
        mu_dtype=mu_dtype,
    )
    return optax.chain(adam, optax.scale_by_learning_rate(learning_rate))


def scale_by_dp_adam(
    *,
    noise_stddev: float,
    row_norms: jax.typing.ArrayLike | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    floor: float = 0.05,
    mu_dtype: jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformation:
    """Scales updates like Adam, with the noise variance subtracted from the second moments.

    It only sees noised gradients, so privacy does not depend on it or on its arguments.

    | noise                     | update                                                     |
    | ------------------------- | ---------------------------------------------------------- |
    | none (`noise_stddev=0`)   | that of `optax.adam`                                       |
    | independent               | the variance is subtracted                                 |
    | correlated                | the average of the variances of past steps is subtracted   |
    | steps beyond `row_norms`  | NaN, because the noise of such a step is not known         |

    Args:
      noise_stddev: standard deviation of the noise in each coordinate of the gradient passed to
        `update`, so after `normalize_by`: noise multiplier * clip norm / expected batch size. For
        correlated noise C^-1 z, the standard deviation of z.
      row_norms: for correlated noise, the L2 norm of each row of the noising matrix C^-1, one per
        step: the noise of step t has standard deviation `noise_stddev * row_norms[t]`. For a
        Toeplitz matrix with first column c they are `sqrt(cumsum(c**2))`.
      floor: at least this fraction of the noise's second moment stays in the denominator, which
        keeps it above zero. With b2 = 0.999 the average over noise alone deviates from its mean by
        3%, so an estimate much below that is indistinguishable from noise.
      b1, b2, eps, eps_root, mu_dtype: as in `optax.adam`.

    Moments and updates are float32 or wider, except the first moment if `mu_dtype` is given. With
    correlated noise, a gradient depends on earlier noise through the parameters, and so is slightly
    correlated with the noise added to it. That part of the second moment is not subtracted.
    """
    for name, value, least in [("noise_stddev", noise_stddev, 0.0), ("floor", floor, 1e-12)]:
        if not (math.isfinite(value) and value >= least):
            raise FixArgumentsError(f"{name}={value!r}: pass a finite number of at least {least}.")
    for name, value in [("b1", b1), ("b2", b2)]:
        if not 0 <= value < 1:
            raise FixArgumentsError(f"{name}={value!r}: pass a number in [0, 1).")
    variances = _variance_of_each_step(noise_stddev, row_norms)

    def init(params: optax.Params) -> _ScaleByDPAdamState:
        zeros = _wide(optax.tree.zeros_like(params))
        return _ScaleByDPAdamState(
            count=jnp.zeros([], jnp.int32),
            mu=optax.tree.cast(zeros, mu_dtype),
            nu=zeros,
            noise_nu=jnp.zeros([], jnp.float32),
        )

    def update(
        updates: optax.Updates, state: _ScaleByDPAdamState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, _ScaleByDPAdamState]:
        del params
        # A step beyond row_norms gets NaN instead of the last row.
        row = 0 if row_norms is None else state.count
        variance = jnp.asarray(variances).at[row].get(mode="fill", fill_value=jnp.nan)
        count = optax.safe_increment(state.count)
        grads = _wide(updates)
        mu = optax.tree.update_moment(grads, _wide(state.mu), b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(grads, state.nu, b2, 2)
        noise_nu = (1 - b2) * variance + b2 * state.noise_nu
        steps = count.astype(jnp.float32)  # strict promotion rejects float ** int
        noise = optax.tree.bias_correction(noise_nu, b2, steps)

        def direction(m: jax.Array, v: jax.Array) -> jax.Array:
            noise_moment = noise.astype(v.dtype)
            gradient_moment = jnp.maximum(v - noise_moment, floor * noise_moment)
            return m / (jnp.sqrt(gradient_moment + eps_root) + eps)

        mu_hat = optax.tree.bias_correction(mu, b1, steps)
        nu_hat = optax.tree.bias_correction(nu, b2, steps)
        new_state = _ScaleByDPAdamState(count, optax.tree.cast(mu, mu_dtype), nu, noise_nu)
        return jax.tree.map(direction, mu_hat, nu_hat), new_state

    return optax.GradientTransformation(init, update)


def _wide(tree: optax.Updates) -> optax.Updates:
    return jax.tree.map(lambda x: x.astype(accumulation_dtype(x.dtype)), tree)


def _variance_of_each_step(
    noise_stddev: float, row_norms: jax.typing.ArrayLike | None
) -> np.ndarray:
    """The noise variance: one number for all steps, or one per step."""
    if row_norms is None:
        return np.asarray([noise_stddev**2], np.float32)
    norms = np.asarray(row_norms, np.float64)
    if norms.ndim != 1 or not norms.size or not np.isfinite(norms).all() or (norms < 0).any():
        raise FixArgumentsError(
            f"row_norms has shape {norms.shape}, or values that are negative or not finite: pass "
            "the L2 norm of each row of the noising matrix C^-1, one finite number per step, such "
            "as np.linalg.norm(noising_matrix, axis=1)."
        )
    return np.asarray((noise_stddev * norms) ** 2, np.float32)

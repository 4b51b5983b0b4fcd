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

from bevel.checks import finite_number, reals, scalar, shown
from bevel.errors import FixArgumentsError
from bevel.precision import accumulation_dtype

# Squares of larger numbers overflow in float32.
_LARGEST_NOISE = 1e18


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
    if not callable(learning_rate):
        rate = scalar(learning_rate)
        if not (math.isfinite(rate) or isinstance(learning_rate, jax.core.Tracer)):
            raise FixArgumentsError(
                f"learning_rate={shown(learning_rate)}: pass a finite number, or a schedule."
            )
        learning_rate = learning_rate if isinstance(learning_rate, jax.Array) else rate
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
    noise_stddev = finite_number(
        "noise_stddev", noise_stddev, "after normalize_by", 0, _LARGEST_NOISE
    )
    floor = finite_number("floor", floor, "a fraction of the second moment of the noise", 1e-12)
    b1, b2 = _checked_decay("b1", b1), _checked_decay("b2", b2)
    eps, eps_root = (
        finite_number(name, value, "as in optax.adam", 0)
        for name, value in [("eps", eps), ("eps_root", eps_root)]
    )
    mu_dtype = None if mu_dtype is None else _checked_dtype(mu_dtype)
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
    hint = (
        "pass the L2 norm of each row of the noising matrix C^-1, one finite number per step, such "
        "as np.linalg.norm(noising_matrix, axis=1)"
    )
    norms = reals("row_norms", row_norms, (1,), hint).astype(np.float64)
    if not norms.size or (norms < 0).any() or float(np.max(norms)) * noise_stddev > _LARGEST_NOISE:
        raise FixArgumentsError(
            f"row_norms has shape {norms.shape}, or values that are negative or too large: {hint}."
        )
    return np.asarray((noise_stddev * norms) ** 2, np.float32)


def _checked_decay(name: str, value: float) -> float:
    """Returns a decay as a float, from 0 up to, but not including, 1."""
    hint = "a decay below 1"
    decay = finite_number(name, value, hint, 0, 1)
    if decay == 1:
        raise FixArgumentsError(f"{name}={value}: pass {hint}.")
    return decay


def _checked_dtype(dtype: jax.typing.DTypeLike) -> np.dtype:
    try:
        result = jnp.dtype(dtype)
    except Exception as error:  # NumPy reads attributes and strings of any kind
        raise FixArgumentsError(
            f"mu_dtype={shown(dtype)}: pass a dtype such as bfloat16."
        ) from error
    if not jnp.issubdtype(result, jnp.floating):
        raise FixArgumentsError(f"mu_dtype={result}: pass a floating-point dtype.")
    return result

"""How a BLT is written as numbers for an optimiser (JAX)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.matrix_factorization.buffered_toeplitz.blt import BufferedToeplitz
from bevel.matrix_factorization.buffered_toeplitz.loss import LossFn
from bevel.matrix_factorization.optimization import namespace


@dataclasses.dataclass(frozen=True)
class Parameterization:
    """Two functions: from a BLT to parameters, and from these to the BLT and its inverse."""

    params_from_blt: Callable[[BufferedToeplitz], Any]
    blt_and_inverse_from_params: Callable[[Any], tuple[BufferedToeplitz, BufferedToeplitz]]

    @classmethod
    def strategy_blt(cls) -> "Parameterization":
        """Decays and scales of C, as log(theta / (1 - theta)) and log(omega).

        Only the penalties of the loss keep decays apart and the sum of the scales below 1.
        """
        return cls(_params_of_strategy, _strategy_of_params)

    @classmethod
    def buf_decay_pair(cls) -> "Parameterization":
        """Decays of C and of C^-1, which interlace: all parameters give a valid strategy.

        1 > theta_1 > theta_hat_1 > theta_2 > ... > theta_hat_d > 0. In log(theta / (1 - theta)),
        parameters are the first decay and the logarithms of the distances between neighbours.
        Scales of C are then positive and sum to less than 1, so its coefficients do not grow.
        """
        return cls(
            _params_of_pair, lambda params: blt_pair_from_theta_pair(*_pair_of_params(params))
        )

    def get_loss_fn(self, loss_fn: LossFn) -> Callable[[Any], jax.Array]:
        """The penalised loss as a function of the parameters."""
        return lambda params: loss_fn.penalized_loss(*self.blt_and_inverse_from_params(params))


def _params_of_strategy(blt: BufferedToeplitz) -> dict[str, Any]:
    theta, omega = blt.as_floats()
    theta = np.clip(theta, 1e-6, 1 - 1e-12)
    return {"decay": np.log(theta) - np.log1p(-theta), "scale": np.log(omega)}


def _strategy_of_params(params: dict[str, Any]) -> tuple[BufferedToeplitz, BufferedToeplitz]:
    blt = BufferedToeplitz(jax.nn.sigmoid(params["decay"]), jnp.exp(params["scale"]))
    return blt, blt.inverse(skip_checks=True)


def _params_of_pair(blt: BufferedToeplitz) -> dict[str, Any]:
    theta, _ = blt.as_floats()
    theta_hat, _ = blt.inverse().as_floats()
    # A decay of exactly 1, or below 0, has no place on the line: take the nearest that has.
    merged = np.clip(np.stack([theta, theta_hat], axis=1).reshape(-1), 1e-6, 1 - 1e-12)
    places = np.log(merged) - np.log1p(-merged)
    return {"first": places[:1], "log_gaps": np.log(np.maximum(-np.diff(places), 1e-3))}


def _pair_of_params(params: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    below = jnp.cumsum(jnp.exp(params["log_gaps"]))
    places = jnp.concatenate([params["first"], params["first"] - below])
    merged = jax.nn.sigmoid(places).reshape(-1, 2)
    return merged[:, 0], merged[:, 1]


def blt_pair_from_theta_pair(
    theta: jax.Array, theta_hat: jax.Array
) -> tuple[BufferedToeplitz, BufferedToeplitz]:
    """C and C^-1 from the decays of both.

    The series of C is the product of (1 - theta_hat_j x) / (1 - theta_j x), and scales are its
    residues. Decays of one matrix must differ from each other.
    """
    xp = namespace(theta, theta_hat)
    theta, theta_hat = xp.asarray(theta, float), xp.asarray(theta_hat, float)
    return (
        BufferedToeplitz(theta, _residues(theta, theta_hat)),
        BufferedToeplitz(theta_hat, _residues(theta_hat, theta)),
    )


def _residues(poles: jax.Array, zeros: jax.Array) -> jax.Array:
    """prod_i (p_j - z_i) / prod_{i != j} (p_j - p_i), quotient by quotient."""
    to_zeros = poles[:, None] - zeros[None, :]
    xp = namespace(poles, zeros)
    itself = np.eye(poles.shape[0], dtype=bool)
    to_poles = xp.where(itself, 1.0, poles[:, None] - poles[None, :])
    return xp.prod(to_zeros / to_poles, axis=1)

"""Parameterizations of BLTs for optimisation (JAX)."""

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
    """Maps a BLT to parameters, and parameters to a BLT and its inverse."""

    params_from_blt: Callable[[BufferedToeplitz], Any]
    blt_and_inverse_from_params: Callable[[Any], tuple[BufferedToeplitz, BufferedToeplitz]]

    @classmethod
    def strategy_blt(cls) -> "Parameterization":
        """Parameters are the decays and scales of C, as log(theta / (1 - theta)) and log(omega).

        Only the penalties of the loss keep the decays apart and the sum of the scales below 1.
        """
        return cls(_params_of_strategy, _strategy_of_params)

    @classmethod
    def buf_decay_pair(cls) -> "Parameterization":
        """Parameters are the interlacing decays of C and C^-1. All values give a valid C.

        1 > theta_1 > theta_hat_1 > theta_2 > ... > theta_hat_d > 0. The parameters are the first
        logit, log(theta / (1 - theta)), and the logarithms of the gaps between adjacent logits. The
        scales of C are positive and sum to less than 1, so its coefficients do not grow.
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
    # A decay of exactly 1, or of 0 or below, has no finite logit, so clip it.
    merged = np.clip(np.stack([theta, theta_hat], axis=1).reshape(-1), 1e-6, 1 - 1e-12)
    logits = np.log(merged) - np.log1p(-merged)
    return {"first": logits[:1], "log_gaps": np.log(np.maximum(-np.diff(logits), 1e-3))}


def _pair_of_params(params: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    xp = namespace(*params.values())
    below = xp.cumsum(xp.exp(params["log_gaps"]))
    logits = xp.concatenate([params["first"], params["first"] - below])
    merged = (jax.nn.sigmoid(logits) if xp is jnp else 1 / (1 + np.exp(-logits))).reshape(-1, 2)
    return merged[:, 0], merged[:, 1]


def blt_pair_from_theta_pair(
    theta: jax.Array, theta_hat: jax.Array
) -> tuple[BufferedToeplitz, BufferedToeplitz]:
    """Builds C and C^-1 from the decays of both.

    The series of C is the product of (1 - theta_hat_j x) / (1 - theta_j x), and the scales are its
    residues. The decays of each matrix must be distinct.
    """
    xp = namespace(theta, theta_hat)
    theta, theta_hat = xp.asarray(theta, float), xp.asarray(theta_hat, float)
    return (
        BufferedToeplitz(theta, _residues(theta, theta_hat)),
        BufferedToeplitz(theta_hat, _residues(theta_hat, theta)),
    )


def _residues(poles: jax.Array, zeros: jax.Array) -> jax.Array:
    """prod_i (p_j - z_i) / prod_{i != j} (p_j - p_i), as a product of quotients."""
    to_zeros = poles[:, None] - zeros[None, :]
    xp = namespace(poles, zeros)
    diagonal = np.eye(poles.shape[0], dtype=bool)
    to_poles = xp.where(diagonal, 1.0, poles[:, None] - poles[None, :])
    return xp.prod(to_zeros / to_poles, axis=1)

"""Banded Toeplitz matrices and their inverses as streaming matrices (JAX)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import ring
from bevel.matrix_factorization.checks import checked_coefs, checked_length
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix, diagonal
from bevel.matrix_factorization.toeplitz.participation import column_norms


def as_streaming_matrix(coef: jax.Array) -> StreamingMatrix[Any]:
    """The Toeplitz matrix of `coef`, for a banded C^-1 (BISR: banded inverse square root).

    Its state is the last `len(coef) - 1` inputs.
    """
    checked_coefs(coef, "coef")
    return ring.banded_product(lambda _, dtype: jnp.asarray(coef, dtype), np.shape(coef)[0] - 1)


def inverse_as_streaming_matrix(
    coef: jax.Array, column_normalize_for_n: int | None = None
) -> StreamingMatrix[Any]:
    """C^-1 for the banded Toeplitz C of `coef`: the noise of BandMF.

    Its state is the last `len(coef) - 1` outputs.

    Args:
      coef: the first column of C; the first number must not be zero.
      column_normalize_for_n: if given, C is truncated to n x n and each column is scaled to norm 1.
        Before that the columns have equal norms, except the last `len(coef) - 1`, which are
        truncated. Steps from n on give NaN, because C has no such columns.
    """
    checked_coefs(coef, "coef")
    if not isinstance(coef, jax.core.Tracer) and coef[0] == 0:
        raise FixArgumentsError("coef[0] is 0: pass a nonzero one, else there is no inverse.")
    inverse = ring.banded_inverse(lambda _, dtype: jnp.asarray(coef, dtype), np.shape(coef)[0] - 1)
    if column_normalize_for_n is None:
        return inverse
    checked_length(column_normalize_for_n, "column_normalize_for_n")
    # (C D)^-1 = D^-1 C^-1, where D divides each column of C by its norm.
    return diagonal(column_norms(coef, column_normalize_for_n)) @ inverse

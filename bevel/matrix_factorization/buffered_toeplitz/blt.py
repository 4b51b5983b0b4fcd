"""Buffered linear Toeplitz matrices (BLT): C is defined by a few decays and scales.

The diagonal of C is 1, and entry (i, j) below it is the sum over buffers of
`output_scale * buf_decay**(i - j - 1)`. Noise `C^-1 z` then needs one buffer per decay, for any
number of steps (Dvijotham, McMahan, Pillutla, Steinke and Thakurta, 2024).

Concrete values are computed by NumPy in float64, traced values by JAX. Matrices and inverses have
the dtype of the BLT; sensitivities and errors are float64, so that no rounding makes them lower.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import finite_number, positive_number, reals, shown, whole_number
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.buffered_toeplitz.streaming import (
    StreamingMatrixBuilder,
    check_shapes,
)
from bevel.matrix_factorization.checks import checked_finite, checked_length
from bevel.matrix_factorization.optimization import namespace
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix
from bevel.matrix_factorization.toeplitz.series import materialize_lower_triangular


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BufferedToeplitz:
    """A Toeplitz matrix as a sum of decaying buffers; a pytree of two arrays.

    Attributes:
      buf_decay: factor by which each buffer decays per step, in (0, 1] for a strategy matrix C.
      output_scale: weight of each buffer in the output, positive for a strategy matrix C and
        negative for its inverse.
    """

    buf_decay: Any
    output_scale: Any

    @classmethod
    def build(
        cls, buf_decay: Any, output_scale: Any, dtype: jax.typing.DTypeLike = jnp.float64
    ) -> "BufferedToeplitz":
        """Builds a BLT from lists of numbers, checked and in canonical order.

        The arrays are NumPy's, so float64 does not need JAX's x64.
        """
        hint = "pass one number for each buffer"
        decay, scale = (
            reals(name, values, (1,), hint)
            for name, values in [("buf_decay", buf_decay), ("output_scale", output_scale)]
        )
        try:
            known = np.dtype(dtype)
        except Exception as error:  # NumPy reads attributes and strings of any kind
            raise FixArgumentsError(f"dtype={shown(dtype)}: pass float64 or float32.") from error
        if not jnp.issubdtype(known, jnp.floating):
            raise FixArgumentsError(f"dtype={known}: pass float64 or float32.")
        blt = cls(decay.astype(known), scale.astype(known))
        blt.validate()
        return blt.canonicalize()

    @classmethod
    def from_rational_approx_to_sqrt_x(
        cls,
        num_buffers: int,
        *,
        max_buf_decay: float = 1.0,
        max_pillutla_score: float | None = None,
        buf_decay_scale: float = 1.6,
        buf_decay_shift: float = -1,
    ) -> "BufferedToeplitz":
        """A starting point for optimisation: a rational approximation of (1 - x)^(-1/2).

        That function is the mean of 1 / (1 - theta x) for theta with density
        1 / (pi sqrt(theta (1 - theta))). Decays are the nodes of the trapezoidal rule for this
        mean, in the variable log(theta / (1 - theta)), and scales are its weights.

        Args:
          num_buffers: number of nodes; 0 gives the identity.
          max_buf_decay: larger decays are reduced to this.
          max_pillutla_score: all scales are reduced until `pillutla_score()` is at most this.
          buf_decay_scale: distance between nodes. The largest decay is about
            1 - exp(-buf_decay_scale * num_buffers).
          buf_decay_shift: the first node is `buf_decay_shift * buf_decay_scale`.
        """
        count = checked_buffers(num_buffers)
        hint = "pass a decay in (0, 1] and a positive, finite scale"
        max_buf_decay = finite_number("max_buf_decay", max_buf_decay, hint, 0, 1)
        buf_decay_scale = finite_number("buf_decay_scale", buf_decay_scale, hint, 0)
        buf_decay_shift = finite_number("buf_decay_shift", buf_decay_shift, "such as -1")
        if buf_decay_scale * (count + abs(buf_decay_shift)) > _LARGEST_NODE:
            raise FixArgumentsError(
                f"buf_decay_scale={buf_decay_scale:g}, buf_decay_shift={buf_decay_shift:g}: the "
                f"nodes of {count} buffers go beyond {_LARGEST_NODE}, where decays are 0 or 1."
            )
        positive_number("max_buf_decay", max_buf_decay, hint)
        positive_number("buf_decay_scale", buf_decay_scale, hint)
        if max_pillutla_score is not None:
            positive_number("max_pillutla_score", max_pillutla_score, "such as 1.0")
        nodes = buf_decay_scale * (np.arange(count) + buf_decay_shift)
        theta = 1 / (1 + np.exp(-nodes))
        # d theta = theta (1 - theta) d node, so nodes have density sqrt(theta (1 - theta)) / pi.
        weights = buf_decay_scale / np.pi * np.sqrt(theta * (1 - theta))
        theta = np.minimum(theta, max_buf_decay)
        blt = cls.build(theta, weights * theta)
        if max_pillutla_score is not None and blt.pillutla_score() > max_pillutla_score:
            factor = max_pillutla_score / blt.pillutla_score()
            blt = cls.build(blt.buf_decay, blt.output_scale * factor)
        return blt

    def validate(self) -> None:
        """Raises unless both arrays are 1-D, of the same length and finite."""
        check_shapes(self.buf_decay, self.output_scale)
        checked_finite(self.buf_decay, "buf_decay")
        checked_finite(self.output_scale, "output_scale")

    def canonicalize(self) -> "BufferedToeplitz":
        """The same matrix with decays in descending order."""
        order = np.argsort(-np.asarray(self.buf_decay), kind="stable")
        return BufferedToeplitz(self.buf_decay[order], self.output_scale[order])

    @property
    def dtype(self) -> jax.typing.DTypeLike:
        return self.buf_decay.dtype

    def pillutla_score(self) -> Any:
        """Sum of output_scale / buf_decay. If it is below 1, decays of the inverse are positive."""
        return (self.output_scale / self.buf_decay).sum()

    def toeplitz_coefs(self, n: int) -> Any:
        """The first n entries of the first column, in the dtype of the BLT."""
        theta, omega = self.as_floats()
        xp = namespace(theta, omega)
        steps = xp.arange(checked_length(n) - 1, dtype=float)
        below = xp.sum(omega[None, :] * theta[None, :] ** steps[:, None], axis=1)
        return xp.concatenate([xp.ones(1), below]).astype(self.dtype)

    def materialize(self, n: int) -> jax.Array:
        """The n x n matrix."""
        return materialize_lower_triangular(self.toeplitz_coefs(n)).astype(self.dtype)

    def inverse(self, skip_checks: bool = False) -> "BufferedToeplitz":
        """C^-1, a BLT with the same number of buffers and the same dtype.

        All scales must have the same sign. The decays of the inverse are then real and interlace
        those of C. `skip_checks=True` skips this check.
        """
        theta, omega = self.as_floats()
        xp = namespace(theta, omega)
        if omega.size == 0:
            return self
        if not skip_checks and xp is np:
            self.validate()
            if not (np.all(omega > 0) or np.all(omega < 0)):
                raise FixArgumentsError(
                    f"output_scale={omega}: the inverse has real decays only if all scales are "
                    "positive, or all negative."
                )
        # With buffers s, C^-1 is y = x - omega . s and s <- theta s + y. Its decays are therefore
        # eigenvalues of diag(theta) - ones omega', which is similar to the symmetric matrix below.
        sign = xp.where(omega[0] > 0, 1.0, -1.0)
        root = xp.sqrt(sign * omega)
        decays, vectors = xp.linalg.eigh(xp.diag(theta) - sign * xp.outer(root, root))
        weights = xp.sum(vectors * root[:, None], axis=0)
        scales = -sign * weights * weights
        return BufferedToeplitz(*(x[::-1].astype(self.dtype) for x in (decays, scales)))

    def as_floats(self) -> tuple[Any, Any]:
        """Decays and scales in float64, or in JAX's default float if traced."""
        xp = namespace(self.buf_decay, self.output_scale)
        return xp.asarray(self.buf_decay, float), xp.asarray(self.output_scale, float)

    def as_streaming_matrix(self) -> StreamingMatrix[Any]:
        """C as a streaming matrix."""
        return StreamingMatrixBuilder(self.buf_decay, self.output_scale).build()

    def inverse_as_streaming_matrix(self) -> StreamingMatrix[Any]:
        """C^-1 as a streaming matrix, for correlated noise."""
        return StreamingMatrixBuilder(self.buf_decay, self.output_scale).build_inverse()


_LARGEST_NODE = 700  # the exponential of a larger one overflows


def checked_buffers(count: Any, name: str = "num_buffers", least: int = 0) -> int:
    """Checks a number of buffers, each of which is as large as the gradient."""
    why = "More buffers than this have equal decays in float32."
    return whole_number(name, count, least, 100, why)


def check_float64_dtype(blt: BufferedToeplitz) -> None:
    """Raises unless both arrays are float64. Decays near 1 need this precision."""
    dtypes = [np.dtype(x.dtype).name for x in (blt.buf_decay, blt.output_scale)]
    if set(dtypes) != {"float64"}:
        raise FixArgumentsError(
            f"buf_decay and output_scale are {' and '.join(dtypes)}: use float64, as "
            "BufferedToeplitz.build(buf_decay, output_scale) does."
        )


def min_buf_decay_gap(buf_decay: Any) -> Any:
    """The smallest distance between two decays; infinite for fewer than two."""
    if np.shape(buf_decay)[0] < 2:
        return np.asarray(np.inf)
    xp = namespace(buf_decay)
    return xp.min(xp.diff(xp.sort(buf_decay)))


def require_buf_decay_less_eq_one(blt_fn: Callable[..., Any]) -> Any:
    """Decorates a function of a BLT: decays above 1, whose buffers would grow, are an error."""
    return _with_check(blt_fn, "buf_decay", lambda x: x <= 1, "at most 1")


def require_output_scale_gt_zero(blt_fn: Callable[..., Any]) -> Any:
    """Decorates a function of a BLT: scales that are not positive are an error."""
    return _with_check(blt_fn, "output_scale", lambda x: x > 0, "positive")


def _with_check(
    blt_fn: Callable[..., Any], field: str, is_valid: Callable[[Any], Any], requirement: str
) -> Callable[..., Any]:
    @functools.wraps(blt_fn)
    def checked(blt: BufferedToeplitz, *args: Any, **kwargs: Any) -> Any:
        values = getattr(blt, field)
        if not isinstance(values, jax.core.Tracer) and not np.all(is_valid(np.asarray(values))):
            raise FixArgumentsError(
                f"{field}={np.asarray(values)} in {blt_fn.__name__}: all must be {requirement}."
            )
        return blt_fn(blt, *args, **kwargs)

    return checked

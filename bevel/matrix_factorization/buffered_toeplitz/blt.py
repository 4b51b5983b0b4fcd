"""Buffered linear Toeplitz matrices (BLT): C given by a few decays and scales.

The diagonal of C is 1 and entry (i, j) below it is the sum over buffers of
`output_scale * buf_decay**(i - j - 1)`. Noise `C^-1 z` then needs one buffer for each decay, for
any number of steps (Dvijotham, McMahan, Pillutla, Steinke and Thakurta, 2024).

Functions of plain numbers are computed by NumPy in float64, those of traced ones by JAX.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.buffered_toeplitz.streaming import StreamingMatrixBuilder
from bevel.matrix_factorization.checks import checked_finite
from bevel.matrix_factorization.optimization import namespace
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix
from bevel.matrix_factorization.toeplitz.series import materialize_lower_triangular


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BufferedToeplitz:
    """A Toeplitz matrix as a sum of decaying buffers: a tree of two arrays.

    Attributes:
      buf_decay: how much of a buffer is left after a step, one number for each buffer. Those of a
        strategy lie in (0, 1].
      output_scale: with what weight it enters the output: positive in a strategy, negative in the
        inverse of one.
    """

    buf_decay: Any
    output_scale: Any

    @classmethod
    def build(
        cls, buf_decay: Any, output_scale: Any, dtype: jax.typing.DTypeLike = jnp.float64
    ) -> "BufferedToeplitz":
        """From lists of numbers, checked and in canonical order."""
        blt = cls(np.asarray(buf_decay, dtype), np.asarray(output_scale, dtype))
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
        buf_decay_shift: int = -1,
    ) -> "BufferedToeplitz":
        """A start for optimisation: a rational function near (1 - x)^(-1/2).

        That function is the mean of 1 / (1 - theta x) for theta distributed with density
        1 / (pi sqrt(theta (1 - theta))). Decays are the nodes of the trapezoidal rule for this
        mean, in the variable log(theta / (1 - theta)), and scales are its weights.

        Args:
          num_buffers: nodes, 0 for the identity.
          max_buf_decay: larger decays are lowered to this.
          max_pillutla_score: scales are lowered together until `pillutla_score()` is at most this.
          buf_decay_scale: distance of the nodes. The largest decay is then about
            1 - exp(-buf_decay_scale * num_buffers).
          buf_decay_shift: the first node is `buf_decay_shift * buf_decay_scale`.
        """
        count = whole_number("num_buffers", num_buffers, least=0)
        if not (0 < max_buf_decay <= 1 and 0 < buf_decay_scale < np.inf):
            raise FixArgumentsError(
                f"max_buf_decay={max_buf_decay}, buf_decay_scale={buf_decay_scale}: write a decay "
                "in (0, 1] and a positive distance."
            )
        nodes = buf_decay_scale * (np.arange(count) + buf_decay_shift)
        theta = 1 / (1 + np.exp(-nodes))
        # d theta = theta (1 - theta) d node: nodes have density sqrt(theta (1 - theta)) / pi.
        mass = buf_decay_scale / np.pi * np.sqrt(theta * (1 - theta))
        theta = np.minimum(theta, max_buf_decay)
        blt = cls.build(theta, mass * theta)
        if max_pillutla_score is not None and blt.pillutla_score() > max_pillutla_score:
            factor = max_pillutla_score / blt.pillutla_score()
            blt = cls.build(blt.buf_decay, blt.output_scale * factor)
        return blt

    def validate(self) -> None:
        """Refuses arrays of different or higher shapes and numbers that are not finite."""
        shapes = np.shape(self.buf_decay), np.shape(self.output_scale)
        if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
            raise FixArgumentsError(
                f"buf_decay has shape {shapes[0]}, output_scale {shapes[1]}: write two lists, one "
                "number for each buffer."
            )
        checked_finite(self.buf_decay, "buf_decay")
        checked_finite(self.output_scale, "output_scale")

    def canonicalize(self) -> "BufferedToeplitz":
        """The same matrix with the largest decay first."""
        order = np.argsort(-np.asarray(self.buf_decay), kind="stable")
        return BufferedToeplitz(self.buf_decay[order], self.output_scale[order])

    @property
    def dtype(self) -> jax.typing.DTypeLike:
        return self.buf_decay.dtype

    def pillutla_score(self) -> Any:
        """Sum of output_scale / buf_decay. Below 1, all decays of the inverse are positive too."""
        return (self.output_scale / self.buf_decay).sum()

    def toeplitz_coefs(self, n: int) -> Any:
        """The first n numbers of the first column."""
        theta, omega = self.as_floats()
        xp = namespace(theta, omega)
        steps = xp.arange(whole_number("n", n) - 1, dtype=float)
        below = xp.sum(omega[None, :] * theta[None, :] ** steps[:, None], axis=1)
        return xp.concatenate([xp.ones(1), below])

    def materialize(self, n: int) -> jax.Array:
        """The n x n matrix."""
        return materialize_lower_triangular(self.toeplitz_coefs(n))

    def inverse(self, skip_checks: bool = False) -> "BufferedToeplitz":
        """C^-1, which has as many buffers.

        Scales must all have one sign: then all decays of the inverse are real and they interlace
        those of C. `skip_checks` leaves that to the caller.
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
        # With buffers s, C^-1 is y = x - omega . s and s <- theta s + y: its decays are eigenvalues
        # of diag(theta) - ones omega', which is similar to the symmetric matrix below.
        sign = xp.where(omega[0] > 0, 1.0, -1.0)
        root = xp.sqrt(sign * omega)
        decays, vectors = xp.linalg.eigh(xp.diag(theta) - sign * xp.outer(root, root))
        weights = xp.sum(vectors * root[:, None], axis=0)
        return BufferedToeplitz(decays[::-1], (-sign * weights * weights)[::-1])

    def as_floats(self) -> tuple[Any, Any]:
        """Decays and scales in float64, or in JAX's default float if they are traced."""
        xp = namespace(self.buf_decay, self.output_scale)
        return xp.asarray(self.buf_decay, float), xp.asarray(self.output_scale, float)

    def as_streaming_matrix(self) -> StreamingMatrix:
        """C, one step at a time."""
        return StreamingMatrixBuilder(self.buf_decay, self.output_scale).build()

    def inverse_as_streaming_matrix(self) -> StreamingMatrix:
        """C^-1, one step at a time: what correlated noise is made with."""
        return StreamingMatrixBuilder(self.buf_decay, self.output_scale).build_inverse()


def check_float64_dtype(blt: BufferedToeplitz) -> None:
    """Refuses a BLT whose arrays are not float64: decays near 1 need the digits."""
    dtypes = [np.dtype(x.dtype).name for x in (blt.buf_decay, blt.output_scale)]
    if set(dtypes) != {"float64"}:
        raise FixArgumentsError(
            f"buf_decay and output_scale are {' and '.join(dtypes)}: write float64, with "
            "BufferedToeplitz.build(buf_decay, output_scale)."
        )


def min_buf_decay_gap(buf_decay: Any) -> Any:
    """The smallest distance of two decays, infinite for fewer than two."""
    if np.shape(buf_decay)[0] < 2:
        return np.asarray(np.inf)
    xp = namespace(buf_decay)
    return xp.min(xp.diff(xp.sort(buf_decay)))


def require_buf_decay_less_eq_one(blt_fn: Callable[..., Any]) -> Any:
    """Refuses, before a function of a BLT is called, decays above 1: its buffers would grow."""
    return _required(blt_fn, "buf_decay", lambda x: x <= 1, "at most 1")


def require_output_scale_gt_zero(blt_fn: Callable[..., Any]) -> Any:
    """Refuses, before a function of a BLT is called, scales that are not positive."""
    return _required(blt_fn, "output_scale", lambda x: x > 0, "positive")


def _required(
    blt_fn: Callable[..., Any], field: str, holds: Callable[[Any], Any], words: str
) -> Callable[..., Any]:
    @functools.wraps(blt_fn)
    def checked(blt: BufferedToeplitz, *args: Any, **kwargs: Any) -> Any:
        values = getattr(blt, field)
        if not isinstance(values, jax.core.Tracer) and not np.all(holds(np.asarray(values))):
            raise FixArgumentsError(
                f"{field}={np.asarray(values)} for {blt_fn.__name__}: all of them must be {words}."
            )
        return blt_fn(blt, *args, **kwargs)

    return checked

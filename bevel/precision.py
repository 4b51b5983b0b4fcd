"""The dtype of every stage, and bounds on the rounding error of each.

The model computes in any dtype. From the per-example gradient on, bevel sets the dtype:

| stage                                    | dtype                                                |
| ---------------------------------------- | ---------------------------------------------------- |
| loss, activations, per-example gradient  | the model's own                                      |
| norm of one example's gradient           | float32, float64 for float64 gradients               |
| clipping coefficient                     | float32, float64 if any gradient is float64          |
| coefficient times gradient               | float32 or wider; in a product on an accelerator,    |
|                                          | the dtype of its operands                            |
| sum over examples, microbatches, devices | float32 or wider                                     |
| result                                   | float32 or wider, unless you pass `dtype=`           |
| noise                                    | float32 or wider                                     |

There are two separate bounds on rounding:

* The *slack* covers one example's contribution as it enters the sum. It lowers the coefficient, so
  the clip norm holds for the values that are actually summed.
* The *rounding bound* covers the sum itself and grows with the batch. It is
  `BoundedSensitivityCallable.rounding_bound(batch_size)`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


def accumulation_dtype(*dtypes: jax.typing.DTypeLike) -> np.dtype:
    """Returns the dtype in which to square, scale and sum `dtypes`: float32 or float64."""
    wide = any(np.dtype(dtype) == np.dtype(np.float64) for dtype in dtypes)
    return np.dtype(np.float64 if wide else np.float32)


def unit_roundoff(dtype: jax.typing.DTypeLike) -> float:
    """Returns the largest relative error of one rounding to `dtype`."""
    return float(jnp.finfo(dtype).eps) / 2


def matmul_precision(dtype: jax.typing.DTypeLike, requested: object = None) -> "MatmulPrecision":
    """Returns how to multiply matrices of `dtype` on this backend.

    bfloat16 operands are used as they are. GPUs multiply float32 as TF32 (11 significant bits) by
    default. Where the model does so, norms and sums do too, on operands that are rounded once and
    used for both. Products of two such operands are exact in float32. On other backends, and where
    the model asks for a higher precision (`requested`), float32 operands keep all of their bits.
    """
    dtype = np.dtype(dtype)
    wide = accumulation_dtype(dtype)
    if dtype == jnp.dtype("bfloat16"):
        # A CPU widens bfloat16 operands anyway, so the scaled one is not rounded to 8 bits first.
        scaled = wide if jax.default_backend() == "cpu" else dtype
        default = jax.lax.Precision.DEFAULT
        return MatmulPrecision(dtype, scaled, unit_roundoff(scaled), default, None)
    plain = requested in (None, jax.lax.Precision.DEFAULT, (jax.lax.Precision.DEFAULT,) * 2)
    if wide == np.dtype(np.float32) and plain and jax.default_backend() == "gpu":
        return MatmulPrecision(wide, wide, 2.0**-11, jax.lax.Precision.DEFAULT, 10)
    return MatmulPrecision(wide, wide, unit_roundoff(wide), jax.lax.Precision.HIGHEST, None)


@dataclasses.dataclass(frozen=True)
class MatmulPrecision:
    """How a matrix product is computed: the dtype, rounding and precision of its operands."""

    dtype: np.dtype
    scaled: np.dtype  # of the operand that is multiplied by the coefficients
    roundoff: float  # of that operand
    precision: jax.lax.Precision
    mantissa: int | None  # operands are rounded to this many bits; None keeps the dtype's

    def operand(self, x: jax.Array) -> jax.Array:
        """Casts and rounds `x` to an operand of the product."""
        return self._rounded(x.astype(self.dtype))

    def scaled_operand(self, x: jax.Array) -> jax.Array:
        """The same for values that are multiplied by the coefficients."""
        return self._rounded(x.astype(self.scaled))

    def _rounded(self, x: jax.Array) -> jax.Array:
        return x if self.mantissa is None else jax.lax.reduce_precision(x, 8, self.mantissa)


def rounding_growth(terms: float, dtype: jax.typing.DTypeLike = np.float32) -> float:
    """Bounds the relative error of `terms` successive roundings, in any order: n u / (1 - n u)."""
    error = terms * unit_roundoff(dtype)
    return error / (1 - error) if error < 1 else float("inf")


def overflowing(values: np.ndarray) -> int | None:
    """The value that JAX would change the most, or None if it keeps all of them.

    Without 64 bits JAX casts integers to 32 bits, and silently wraps those that do not fit.
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return None
    if jax.config.jax_enable_x64:
        return None
    limits = np.iinfo(jax.dtypes.canonicalize_dtype(values.dtype))
    lowest, highest = int(values.min()), int(values.max())
    outside = [value for value in (highest, lowest) if not limits.min <= value <= limits.max]
    return outside[0] if outside else None

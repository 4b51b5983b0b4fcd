"""The dtype at every stage, in one table, and the rounding that each stage may add.

The model computes in whatever it likes. From the per-example gradient on, bevel decides:

| stage                                   | dtype                                              |
| --------------------------------------- | -------------------------------------------------- |
| loss, activations, per-example gradient | the model's own                                    |
| norm of one example's gradient          | float32, float64 for float64 gradients             |
| clipping coefficient                    | float32, float64 if any gradient is float64        |
| coefficient times gradient              | float32 or wider; for a product, its operands' own |
| sum over examples                       | the same, also over microbatches and devices       |
| result                                  | the same, unless `dtype=` asks for another         |
| noise                                   | float32 or wider                                   |

Two bounds follow, and they are kept apart:

* the *slack* bounds one example's contribution as it enters the sum. It is applied to the
  coefficient, so the promised norm holds for what is really summed;
* the rounding of the sum itself grows with the batch and is stated by
  `BoundedSensitivityCallable.rounding_bound(batch_size)`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

STAGES: dict[str, str] = {
    "per_example_gradient": "as the model computes",
    "norm": "float32 or wider",
    "coefficient": "float32 or wider",
    "sum": "float32 or wider",
    "result": "float32 or wider, unless dtype= is given",
    "noise": "float32 or wider",
}


def accumulation_dtype(*dtypes: jax.typing.DTypeLike) -> np.dtype:
    """The dtype in which values of `dtypes` are squared, scaled and summed: float32 at least."""
    widest: np.dtype = np.dtype(np.float32)
    for dtype in dtypes:
        if np.dtype(dtype) == np.dtype(np.float64):
            widest = np.dtype(np.float64)
    return widest


def unit_roundoff(dtype: jax.typing.DTypeLike) -> float:
    """Largest relative error of one rounding to `dtype`."""
    return float(jnp.finfo(dtype).eps) / 2


def multiplier(dtype: jax.typing.DTypeLike, asked: object = None) -> "Multiplier":
    """How matrices of `dtype` are multiplied here, so that each product is exact in float32.

    Matrix units take bfloat16 as it is. By default GPUs take float32 as TF32 (11 significant bits):
    where the model does, so do norm and sum, on operands that were rounded so once, and for both.
    Elsewhere, and where the model asks for more, float32 is multiplied in full.
    """
    dtype = np.dtype(dtype)
    if dtype == jnp.dtype("bfloat16"):
        return Multiplier(dtype, unit_roundoff(dtype), jax.lax.Precision.DEFAULT, None)
    wide = accumulation_dtype(dtype)
    plain = asked in (None, jax.lax.Precision.DEFAULT, (jax.lax.Precision.DEFAULT,) * 2)
    if wide == np.dtype(np.float32) and plain and jax.default_backend() == "gpu":
        return Multiplier(wide, 2.0**-11, jax.lax.Precision.DEFAULT, 10)
    return Multiplier(wide, unit_roundoff(wide), jax.lax.Precision.HIGHEST, None)


@dataclasses.dataclass(frozen=True)
class Multiplier:
    """What a matrix product takes: the dtype of its operands, their roundoff and precision."""

    dtype: np.dtype
    roundoff: float
    precision: jax.lax.Precision
    mantissa: int | None  # bits to which operands are rounded, if fewer than the dtype has

    def operand(self, x: jax.Array) -> jax.Array:
        """`x` as the multiplier takes it."""
        x = x.astype(self.dtype)
        return x if self.mantissa is None else jax.lax.reduce_precision(x, 8, self.mantissa)


def rounding_growth(terms: float, dtype: jax.typing.DTypeLike = np.float32) -> float:
    """Bound on the relative error of `terms` roundings in a row, in any order: n u / (1 - n u)."""
    error = terms * unit_roundoff(dtype)
    return error / (1 - error) if error < 1 else float("inf")

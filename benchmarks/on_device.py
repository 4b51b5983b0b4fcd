"""Checks clipping on this accelerator: every loss of the test table against the oracle.

    python benchmarks/on_device.py

Prints two columns per dtype: the error of the clipped sum relative to the float64 oracle, and the
largest norm of a single example's contribution relative to the clip norm, which must not exceed 1
by more than the stated rounding bound of a sum of one example. Most of the error is the model's
own, because JAX by default multiplies float32 matrices in TF32 on recent GPUs.
"""

import datetime
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "")]

import losses  # noqa: E402
import oracle  # noqa: E402

import bevel  # noqa: E402

TOLERANCE = {"float32": 2e-3, "bfloat16": 6e-2}


def norm(tree) -> float:
    return float(
        np.sqrt(sum(np.sum(np.asarray(x, np.float64) ** 2) for x in jax.tree.leaves(tree)))
    )


def check(name: str, dtype: str) -> tuple[float, float, float]:
    """(relative error, largest contribution over clip norm, rounding bound over clip norm)."""
    case = losses.make(name, jnp.dtype(dtype))
    limit = oracle.middle_norm(case.loss, case.params, case.batch)
    truth = oracle.clipped_sum(case.loss, case.params, case.batch, clip_norm=limit).grad
    fn = bevel.clipped_grad(case.loss, l2_clip_norm=limit)
    result = fn(case.params, case.batch)
    difference = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, result, truth)
    # All rows but one are padding, so the result is the contribution of that row.
    rows = len(jax.tree.leaves(case.batch)[0])
    contributions = [
        norm(fn(case.params, case.batch, is_padding_example=jnp.arange(rows) != i))
        for i in range(rows)
    ]
    return norm(difference) / norm(truth), max(contributions) / limit, fn.rounding_bound(1) / limit


def main() -> int:
    failures = 0
    print(f"{'loss':24}", *(f"{d + ' error':>16}{'contribution':>16}" for d in TOLERANCE))
    for name in losses.NAMES:
        cells = []
        for dtype, tolerance in TOLERANCE.items():
            loose = TOLERANCE["bfloat16"] if name == "mixed_dtypes" else tolerance
            error, largest, rounding = check(name, dtype)
            failures += error > loose or largest > 1 + rounding
            cells.append(f"{error:16.1e}{largest:16.8f}")
        print(f"{name:24}", *cells, flush=True)
    print(
        f"{failures} failures; {jax.devices()[0].device_kind}, {datetime.date.today()}, "
        f"jax {jax.__version__}, bevel {bevel.__version__}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

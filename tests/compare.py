"""Comparisons and covers that several test files share."""

import itertools
import os
import re
from typing import Any

import jax
import numpy as np

FULL = bool(os.environ.get("BEVEL_FULL_MATRIX"))


def cover(first: Any, *others: Any) -> list[tuple]:
    """All combinations; in CI, every level of `first` with every level of each other factor."""
    if FULL:
        return list(itertools.product(first, *others))
    columns = [list(other) for other in others]
    rows = max(map(len, columns))
    # Row r of level n takes entry n + r of each column: short columns start elsewhere each time.
    return [
        (level, *(column[(n + row) % len(column)] for column in columns))
        for n, level in enumerate(first)
        for row in range(rows)
    ]


def assert_close(got: Any, expected: Any, tolerance: float) -> None:
    """Every leaf, relative to the largest entry of the whole tree."""
    scale = max((np.max(np.abs(x), initial=0.0) for x in jax.tree.leaves(expected)), default=1.0)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        error = np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)), initial=0.0)
        assert error <= tolerance * scale, f"off by {error:.3g}, largest entry {scale:.3g}"


def cost(fun: Any, *args: Any) -> dict[str, float]:
    """FLOPs and temporary bytes per device, and the number of collectives of each kind."""
    compiled = jax.jit(fun).lower(*args).compile()
    text = compiled.as_text()
    kinds = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds}
    return {
        "flops": compiled.cost_analysis()["flops"],
        "memory": compiled.memory_analysis().temp_size_in_bytes,
        **counts,
    }

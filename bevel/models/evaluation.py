"""`Evaluation`: measures a model on a test set, in chunks of one size."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bevel.datasets import DataSpec
from bevel.models.objective import metrics_of, output_shape, totals_of
from bevel.training.data import DataSource

PyTree = Any
_MOST_ROWS = 1024
_MOST_NUMBERS = 2**24  # in the inputs or outputs of a chunk


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """The test metrics of parameters. The test set is never trained on.

    It is read in chunks of at most 1,024 examples, so it need not fit into memory. All chunks have
    one size, for which the model is compiled once.
    """

    predict: Callable[[PyTree, jax.Array], jax.Array]
    spec: DataSpec
    test: DataSource
    mesh: jax.sharding.Mesh

    def __call__(self, params: PyTree) -> dict[str, float]:
        """`test_accuracy` of classes, `test_rmse` of numbers, or `test_loss` and
        `test_perplexity` of the next token."""
        totals: dict[str, float] = {}
        for start in range(0, len(self.test), self._rows):
            batch, is_padding = self._chunk(start)
            for name, value in self._totals(params, batch, is_padding).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        return metrics_of(self.spec, totals)

    @functools.cached_property
    def _rows(self) -> int:
        sizes = (math.prod(self.spec.shape), math.prod(output_shape(self.spec, 1)))
        return max(1, min(_MOST_ROWS, len(self.test), _MOST_NUMBERS // max(*sizes, 1)))

    def _chunk(self, start: int) -> tuple[PyTree, np.ndarray]:
        """Examples from `start` on, and which rows of them are padding."""
        rows = np.arange(start, start + self._rows)
        is_padding = rows >= len(self.test)
        batch = self.test.read(np.where(is_padding, 0, rows))
        return {name: batch[name] for name in ("x", "y")}, is_padding

    @functools.cached_property
    def _totals(self) -> Callable[..., dict[str, jax.Array]]:
        replicated = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

        @jax.jit
        def totals(params: PyTree, batch: PyTree, is_padding: jax.Array) -> dict[str, jax.Array]:
            # The test set is not sharded. Sharded parameters would only add communication.
            params = jax.lax.with_sharding_constraint(params, replicated)
            outputs = self.predict(params, batch["x"])
            return totals_of(self.spec, outputs, batch["y"], is_padding)

        return totals


def described(metrics: dict[str, float]) -> str:
    """Test metrics in words: 'test accuracy 93.06%'."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.2%}"
        if name.endswith("accuracy")
        else f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in metrics.items()
    )

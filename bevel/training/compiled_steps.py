"""The compiled steps of a run: one for each padded size, compiled before the run."""

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bevel.training.batches import Batch, Batches

PyTree = Any
# Calls that JAX partitions by a Python function carry its address, another in every process.
ADDRESS = re.compile(r'backend_config = "\d+"')


class CompiledSteps:
    """Runs a step on a batch of any padded size.

    The state is given away (donated): its memory is taken for the next one, which lies where it
    lay. `compiled` counts programs, `seconds` the time that compiling them took.
    """

    def __init__(self, step: Callable[..., Any], state: PyTree, keys: PyTree, batches: Batches):
        self._batches = batches
        self._inputs = jax.tree.map(shaped, (state, keys))
        mesh = batches.layout.mesh
        everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        placed = jax.tree.map(lambda x: x.sharding, state)
        self._step = jax.jit(step, donate_argnums=0, out_shardings=(placed, everywhere))
        self._compiled: dict[int, Any] = {}
        self._lowered: dict[int, Any] = {}
        self.seconds = 0.0

    @property
    def compiled(self) -> int:
        return len(self._compiled)

    def fingerprint(self) -> str:
        """A hash of the program before it is compiled, for the first of the padded sizes."""
        text = self._lower(self._batches.sizes.sizes[0]).as_text()
        return hashlib.sha256(ADDRESS.sub("", text).encode()).hexdigest()

    def compile_ahead(self, sizes: Sequence[int]) -> None:
        for size in sizes:
            self.of_size(size)

    def of_size(self, size: int) -> Any:
        """The compiled step for batches of `size` rows."""
        if size not in self._compiled:
            begun = time.perf_counter()
            self._compiled[size] = self._lower(size).compile()
            self._lowered.pop(size)
            self.seconds += time.perf_counter() - begun
        return self._compiled[size]

    def _lower(self, size: int) -> Any:
        if size not in self._lowered:
            batch = self._batches.shapes(size)
            state, keys = self._inputs
            self._lowered[size] = self._step.lower(state, *_arguments(batch), keys)
        return self._lowered[size]

    def __call__(self, state: PyTree, batch: Batch, keys: PyTree) -> Any:
        return self.of_size(len(batch.is_padding))(state, *_arguments(batch), keys)


def _arguments(batch: Batch) -> tuple[PyTree, Any]:
    """What a step takes of a batch: `(data, is_missing)` and `is_padding`."""
    return (batch.data, batch.is_missing), batch.is_padding


def shaped(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

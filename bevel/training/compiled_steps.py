"""Compiles the step function of a run for each padded size."""

import concurrent.futures
import contextlib
import hashlib
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bevel.training.batches import Batch, Batches
from bevel.training.state import shaped

PyTree = Any
# Calls with a custom partitioner contain its memory address, which differs between processes.
ADDRESS = re.compile(r'backend_config = "\d+"')


class CompiledSteps:
    """Runs a step on a batch of any padded size.

    The state is donated, and the next state has the same shardings. `compiled` is the number of
    compiled programs, and `seconds` the time that the run waited for them. `working` surrounds this
    time, with what is compiled.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        state: PyTree,
        keys: PyTree,
        batches: Batches,
        working: Callable[[str], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._batches, self._working = batches, working
        self._inputs = jax.tree.map(shaped, (state, keys))
        mesh = batches.layout.mesh
        replicated = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        shardings = jax.tree.map(lambda x: x.sharding, state)
        self._step = jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated))
        self._compiled: dict[int, Any] = {}
        self._lowered: dict[int, Any] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "bevel-compile")
        self._in_background: dict[int, concurrent.futures.Future[Any]] = {}
        self._goes_on = False
        self.seconds = 0.0

    @property
    def compiled(self) -> int:
        return len(self._compiled) + sum(x.done() for x in self._in_background.values())

    @property
    def ahead(self) -> bool:
        """Whether the first size is compiled, or about to be."""
        first = self._batches.sizes.sizes[0]
        return first in self._compiled or first in self._in_background

    def begin(self) -> None:
        """Compiles the step for the first size in a background thread.

        The first size is the smallest, which nearly all batches fit.
        """
        self._goes_on = True
        first = self._batches.sizes.sizes[0]
        if first not in self._compiled and first not in self._in_background:
            self._submit(first)

    def go_on(self) -> None:
        """Compiles the next of the other sizes after `begin`, unless one is being compiled.

        They are compiled while steps are taken, one at a time, because compilers take time from
        each other and from the start of a run.
        """
        if self._goes_on and all(x.done() for x in self._in_background.values()):
            for size in self._batches.sizes.sizes:
                if size not in self._compiled and size not in self._in_background:
                    return self._submit(size)

    def compile_all(self) -> None:
        """Compiles the step for all sizes.

        For several processes: their compilers may exchange what they find, so all of them have to
        compile the same programs at once.
        """
        for size in self._batches.sizes.sizes:
            self.of_size(size)

    def _submit(self, size: int) -> None:
        # Lower here: settings of JAX that are active in this thread are not in another.
        program = self._lower(size)
        self._in_background[size] = self._pool.submit(program.compile)

    def close(self) -> None:
        """Cancels compilations that have not begun, and waits for the one that has."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def fingerprint(self) -> str:
        """Hashes the lowered program for the first padded size."""
        text = self._lower(self._batches.sizes.sizes[0]).as_text()
        return hashlib.sha256(without_names(text).encode()).hexdigest()

    def of_size(self, size: int) -> Any:
        """Returns the compiled step for batches of `size` rows, and compiles it if necessary."""
        if size not in self._compiled:
            begun = time.perf_counter()
            with self._working(f"compiling for batches of {size}"):
                program = self._in_background.pop(size, None)
                found = program.result() if program else self._lower(size).compile()
            self._compiled[size] = found
            self.seconds += time.perf_counter() - begun
            self._lowered.pop(size)
        return self._compiled[size]

    def _lower(self, size: int) -> Any:
        if size not in self._lowered:
            batch = self._batches.shapes(size)
            state, keys = self._inputs
            self._lowered[size] = self._step.lower(state, *_arguments(batch), keys)
        return self._lowered[size]

    def __call__(self, state: PyTree, batch: Batch, keys: PyTree) -> Any:
        return self.of_size(len(batch.is_padding))(state, *_arguments(batch), keys)


def without_names(program: str) -> str:
    """The text of a lowered program with its functions numbered.

    Renaming a Python function then does not change the fingerprint of a run.
    """
    defined = re.findall(r"(?:func\.func (?:\w+ )?|module )@([\w.$-]+)", program)
    numbers = {name: f"@{number}" for number, name in enumerate(dict.fromkeys(defined))}
    text = re.sub(r"@([\w.$-]+)", lambda m: numbers.get(m.group(1), m.group(0)), program)
    return ADDRESS.sub("", text)


def _arguments(batch: Batch) -> tuple[PyTree, Any]:
    """Returns the arguments of a step: `(data, is_missing)` and `is_padding`."""
    return (batch.data, batch.is_missing), batch.is_padding

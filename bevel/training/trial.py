"""Compiles the step of a run and times it on zeros, so that nothing of the data is used."""

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bevel.training.batches import Batches
from bevel.training.compiled_steps import CompiledSteps
from bevel.training.data import DataSource
from bevel.training.loop import loss_key_data
from bevel.training.state import TrainingState, copied

if TYPE_CHECKING:
    from bevel.training.trainer import Trainer

PyTree = Any
# The step is repeated for about this long, and at least and at most this often.
SECONDS, FEWEST, MOST = 1.0, 3, 50


@dataclasses.dataclass(frozen=True)
class _Trial:
    """What the compiler and a stopwatch say about a step, for the smallest padded size.

    Attributes:
      padded_sizes: the sizes that batches are padded to.
      compile_seconds: the time to trace and compile the step.
      step_seconds: the median time of a step, without reading its batch.
      device_bytes: the memory that the step needs on each device, by the compiler: arguments,
        results and temporaries. None if the compiler does not say.
      state_bytes: the size of the state that a checkpoint holds, over all devices.
      digests: of the loss and the optimizer, as in the identity of a run.
    """

    padded_sizes: tuple[int, ...]
    compile_seconds: float
    step_seconds: float
    device_bytes: int | None
    state_bytes: int
    digests: dict[str, str]


def try_step(
    trainer: "Trainer", begin: TrainingState, source: DataSource, compilations: int
) -> _Trial:
    """Compiles and times the step of `fit` on batches of zeros, with a noise key of zeros.

    Of the source only the shape of a record is used: no record is read. `begin` is not changed.
    """
    plan, layout = trainer.plan, trainer.layout
    sizes = trainer.sizes(compilations)
    batches = Batches(
        source,
        plan.batch_selection_strategy,
        population=0,
        sizes=sizes,
        layout=layout,
        microbatch_size=plan.flags.microbatch_size,
    )
    keys = {
        "noise": jnp.zeros_like(jax.random.key_data(plan.secrets.noise_key)),
        "loss": jnp.zeros_like(loss_key_data(0)),
    }
    where = layout.sharding
    if layout.mesh is not None:
        where = NamedSharding(layout.mesh, PartitionSpec())
    keys = jax.tree.map(lambda x: jax.device_put(x, where), keys)
    programs = CompiledSteps(trainer.step.measured, begin, keys, batches)
    size = sizes.sizes[0]
    begun = time.perf_counter()
    compiled = programs.of_size(size)
    compile_seconds = time.perf_counter() - begun
    programs.close()
    shapes = batches.shapes(size)
    batch = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding),
        ((shapes.data, shapes.is_missing), shapes.is_padding),
    )
    return _Trial(
        sizes.sizes,
        compile_seconds,
        _median_seconds(compiled, copied(begin), (*batch, keys)),
        _device_bytes(compiled),
        sum(x.nbytes for x in jax.tree.leaves(dataclasses.replace(begin, model_state=None))),
        trainer.step.digests(begin),
    )


def _median_seconds(compiled: Any, state: TrainingState, arguments: tuple[Any, ...]) -> float:
    """The median time of a step. The first one is not counted."""
    state, _ = jax.block_until_ready(compiled(state, *arguments))
    seconds: list[float] = []
    while len(seconds) < FEWEST or (sum(seconds) < SECONDS and len(seconds) < MOST):
        begun = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state, *arguments))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def _device_bytes(compiled: Any) -> int | None:
    found = compiled.memory_analysis()
    if found is None:
        return None
    return int(
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
        + found.temp_size_in_bytes
    )

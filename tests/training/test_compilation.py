"""Padding to multiples: every batch fits, and the mesh and microbatches divide it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plans import CONFIGS

from bevel.batch_selection import PaddedSizes
from bevel.errors import FixArgumentsError
from bevel.execution_plan import PerformanceFlags
from bevel.training import AutotuneMicrobatch, PadToMultiple, Trainer
from bevel.training.compilation import memory_option, padded_sizes_of


@pytest.mark.parametrize("microbatch, parts, multiple", [(None, 1, 6), (4, 1, 12), (4, 8, 24)])
def test_batches_are_padded_to_the_next_multiple(microbatch, parts, multiple):
    plan = CONFIGS["dpsgd"].make(PerformanceFlags(microbatch_size=microbatch))
    sizes = PadToMultiple(6).sizes(plan, parts)
    for size in range(60):
        padded = sizes.pad(np.arange(size))
        assert len(padded) == max(1, -(-size // multiple)) * multiple
    (ahead,) = sizes.sizes
    assert ahead % multiple == 0 and 0 <= ahead - plan.expected_batch_size < multiple


def test_the_sizes_of_a_trainer():
    plan, given = CONFIGS["dpsgd"].make(), PaddedSizes((8, 16))
    assert padded_sizes_of(plan, given, 1, 3) is given
    assert padded_sizes_of(plan, None, 1, 3) == plan.padded_sizes(count=3)
    assert padded_sizes_of(plan, PadToMultiple(4), 2, 3).size_for(5) == 8


def test_an_unknown_batch_size_is_padded_to_multiples():
    class Unknown:
        expected_batch_size, flags = None, PerformanceFlags()

    sizes = padded_sizes_of(Unknown(), None, 1, 3)
    assert [sizes.size_for(n) for n in (0, 1, 32, 33)] == [32, 32, 32, 64]
    assert dataclasses.is_dataclass(sizes)


@pytest.mark.parametrize("multiple", [0, -1, 2.5])
def test_the_multiple_is_a_positive_integer(multiple):
    with pytest.raises(FixArgumentsError, match="multiple="):
        PadToMultiple(multiple)


def test_a_limit_on_memory_is_passed_to_clipping():
    plan = CONFIGS["dpsgd"].make()
    assert memory_option(AutotuneMicrobatch(8, memory=2**20), plan) == {"memory": 2**20}
    assert memory_option(PadToMultiple(8), plan) == memory_option(None, plan) == {}
    with pytest.raises(FixArgumentsError, match="microbatch_size=4: leave it out"):
        flags = PerformanceFlags(microbatch_size=4)
        memory_option(AutotuneMicrobatch(), CONFIGS["dpsgd"].make(flags))


def test_a_limit_on_memory_lowers_the_memory_of_a_step():
    def loss(w, data, prng):
        return jnp.sum(jnp.tanh(jnp.tanh(data @ w) @ w) ** 2), {}

    params, batch = jnp.ones((64, 64)), (jnp.ones((128, 64)), None)
    used = []
    for memory in (1e6, 2**18):
        trainer = Trainer(
            config=CONFIGS["dpsgd"].make(),
            loss_fn=loss,
            optimizer=optax.sgd(0.1),
            compilation_strategy=AutotuneMicrobatch(memory=memory),
        )
        clip = jax.jit(trainer.step.clip)
        state, padding = trainer.init(params), jnp.zeros(128, bool)
        compiled = clip.lower(state, batch, padding, jax.random.key(0)).compile()
        used.append(compiled.memory_analysis().temp_size_in_bytes)
    assert used[1] < used[0]

"""Steps are compiled once per padded size, ahead of time, and donate their state."""

import contextlib
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import training_runs as runs

from bevel.batch_selection import PaddedSizes
from bevel.sharding import make_mesh
from bevel.training.batches import Batches, Selection, batch_layout
from bevel.training.compiled_steps import CompiledSteps, without_names
from bevel.training.data import source_of
from bevel.training.state import on_mesh


def first_rows(size):
    return Selection(size, np.arange(size).__getitem__)


def made(scale=1.0, **options):
    mesh = make_mesh("data=8")
    strategy = runs.plan().batch_selection_strategy
    batches = Batches(
        source_of(runs.data()), strategy, runs.N, PaddedSizes((8, 16), 8), batch_layout(mesh)
    )
    state, keys = on_mesh((jnp.zeros(runs.D), jnp.zeros(1)), mesh)

    def step(state, batch, is_padding, keys):
        real = jnp.where(is_padding[:, None], 0, batch[0]["x"])
        return state + scale * real.sum(axis=0), {"rows": (~is_padding).sum()}

    return CompiledSteps(step, state, keys, batches, **options), state, keys, batches


def test_a_size_is_compiled_once_and_ahead():
    waited = []
    programs, state, keys, batches = made(
        working=lambda what: contextlib.nullcontext(waited.append(what))
    )
    for size in (8, 16):
        programs.of_size(size)
    assert programs.compiled == 2
    assert waited == ["compiling for batches of 8", "compiling for batches of 16"]
    for size in (8, 16, 8):
        state, seen = programs(state, batches.load(0, first_rows(size)), keys)
        assert int(seen["rows"]) == size
    assert programs.compiled == 2
    x = runs.data()["x"]
    np.testing.assert_allclose(state, 2 * x[:8].sum(0) + x[:16].sum(0), rtol=1e-5)
    # A batch above all padded sizes is compiled when it appears.
    state, _ = programs(state, batches.load(0, first_rows(24)), keys)
    assert programs.compiled == 3 and len(state.devices()) == 8


def test_larger_sizes_are_compiled_in_the_background_and_awaited():
    programs, state, keys, batches = made()
    begun, goes_on = threading.Event(), threading.Event()
    lower = programs._lower

    def slowly(size):
        lowered = lower(size)
        if size == 8:
            return lowered

        def compile():
            begun.set()
            assert goes_on.wait(60)
            return lowered.compile()

        return types.SimpleNamespace(compile=compile)

    programs._lower = slowly
    programs.begin()
    state, _ = programs(state, batches.load(0, first_rows(8)), keys)
    programs.go_on()
    assert programs.compiled == 1 and begun.wait(60)
    state, _ = programs(state, batches.load(0, first_rows(8)), keys)  # does not wait
    threading.Timer(0.1, goes_on.set).start()
    state, seen = programs(state, batches.load(0, first_rows(16)), keys)  # waits
    assert int(seen["rows"]) == 16 and programs.compiled == 2
    programs.close()


def test_an_error_in_the_background_reaches_the_step_that_needs_the_program():
    programs, state, keys, batches = made()
    lower = programs._lower

    def failing(size):
        return lower(size) if size == 8 else types.SimpleNamespace(compile=lambda: 1 / 0)

    programs._lower = failing
    programs.begin()
    state, _ = programs(state, batches.load(0, first_rows(8)), keys)
    programs.go_on()
    with pytest.raises(ZeroDivisionError):
        programs(state, batches.load(0, first_rows(16)), keys)
    programs.close()


def test_what_was_not_begun_is_not_compiled_at_the_end():
    programs, *_ = made()
    began, goes_on = threading.Event(), threading.Event()
    programs._pool.submit(lambda: (began.set(), goes_on.wait(60)))
    assert began.wait(60)
    programs.begin()
    goes_on.set()
    programs.close()
    assert programs._in_background[8].done()


def test_only_the_first_size_is_lowered_before_the_first_step():
    programs, state, keys, batches = made()
    lowered = []
    lower = programs._lower
    programs._lower = lambda size: (lowered.append(size), lower(size))[1]
    programs.go_on()  # nothing, because `begin` was not called
    programs.begin()
    programs.begin()
    assert set(lowered) == {8} and programs.ahead
    state, _ = programs(state, batches.load(0, first_rows(8)), keys)
    assert set(lowered) == {8} and programs.compiled == 1
    programs.go_on()
    assert set(lowered) == {8, 16}
    programs.close()


def test_other_sizes_are_compiled_one_at_a_time():
    programs, *_ = made()
    goes_on = threading.Event()
    programs._lower = lambda size: types.SimpleNamespace(compile=lambda: goes_on.wait(60))
    programs.begin()
    programs.go_on()  # 8 is being compiled
    assert list(programs._in_background) == [8]
    goes_on.set()
    programs._in_background[8].result(60)
    programs.go_on()
    assert list(programs._in_background) == [8, 16]
    programs.close()


def test_all_sizes_can_be_compiled_at_once():
    programs, *_ = made()
    programs.compile_all()
    assert programs.compiled == 2


def test_the_state_is_donated():
    programs, state, keys, batches = made()
    programs(state, batches.load(0, first_rows(8)), keys)
    assert state.is_deleted()


def test_the_fingerprint_is_that_of_the_program():
    assert made()[0].fingerprint() == made()[0].fingerprint() != made(2.0)[0].fingerprint()
    assert jax.device_count() == 8


def test_the_fingerprint_does_not_depend_on_the_names_of_functions():
    def lowered(inner):
        def step(x):
            return jax.jit(inner)(x) + jax.pure_callback(abs, jax.ShapeDtypeStruct((), x.dtype), x)

        return jax.jit(step).lower(1.0).as_text()

    def one(x):
        return jnp.sin(x)

    def renamed(x):
        return jnp.sin(x)

    def other(x):
        return jnp.cos(x)

    first = without_names(lowered(one))
    assert lowered(one) != lowered(renamed) and first == without_names(lowered(renamed))
    assert first != without_names(lowered(other))
    assert "custom_call @xla" in first  # which foreign code is called does matter

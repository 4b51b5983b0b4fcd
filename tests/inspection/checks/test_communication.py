import jax
import jax.numpy as jnp
import pytest
from meshes import (
    DATA_PARALLEL,
    GRID,
    LINE,
    SHARDED_DATA_PARALLEL,
    TENSOR_PARALLEL,
    on,
    sgd_step,
    two_layers,
)

from bevel.inspection.checks.communication import gathered_weights, narrow_sums, random_numbers
from bevel.inspection.compiled_step import Limits, compile_step


def found(check, step, *args, **options):
    return list(check(compile_step(step, args, {}, None, options.get("argnums", 0), Limits())))


def gathered(layout, batch):
    return found(gathered_weights, sgd_step, two_layers(GRID, *layout), on(GRID, batch, "data"))


@pytest.mark.parametrize("layout", [DATA_PARALLEL, TENSOR_PARALLEL])
def test_weights_that_stay_are_not_reported(layout):
    assert gathered(layout, (256, 32)) == []


def test_a_weight_gathered_over_the_batch_axis_is_a_note():
    notes = gathered(SHARDED_DATA_PARALLEL, (256, 32))
    assert {f.severity for f in notes} == {"note"}
    assert {f.what.split(" ")[0] for f in notes} == {"params['up']", "params['down']"}
    assert all(f.bytes == 3 / 4 * 4 * 32 * 64 for f in notes)
    assert all(f.line is not None and f.line.file.endswith("meshes.py") for f in notes)


def test_a_weight_gathered_over_another_axis_is_a_warning():
    (warning,) = gathered((("model",), ()), (256, 32))
    assert warning.severity == "warning" and "gathered over model" in warning.what
    assert "params['up'] (32, 64)" in warning.what and "replicate it over model" in warning.fix


def test_weights_gathered_in_a_loop_are_counted_there():
    def step(params, x):
        def loss(params):
            return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0])

        return jax.grad(loss)(params)

    params = on(LINE, (3, 32, 32), None, "data")
    (note,) = found(gathered_weights, step, params, on(LINE, (512, 32), "data"))
    times = int(note.what.split(" times")[0].split()[-1])
    assert times % 3 == 0 and note.bytes == times * 7 / 8 * 4 * 32 * 32


def noisy(params, key, x):
    return params + jax.random.normal(key, params.shape) * jnp.sum(x)


def test_random_numbers_that_communicate():
    args = on(LINE, (64, 32), "data"), jax.random.key(0), on(LINE, (8,), "data")
    assert found(random_numbers, noisy, *args) == []
    with jax.threefry_partitionable(False):
        (warning,) = found(random_numbers, noisy, *args)
    assert warning.line.line == noisy.__code__.co_firstlineno + 1
    assert "jax_threefry_partitionable" in warning.fix and warning.bytes > 0


def test_random_numbers_that_are_drawn_and_then_gathered():
    def step(params, key):
        drawn = jax.random.normal(key, params.shape)
        split = jax.lax.with_sharding_constraint(drawn, on(LINE, drawn.shape, "data").sharding)
        return params + jax.lax.with_sharding_constraint(split, on(LINE, ()).sharding)

    (warning,) = found(random_numbers, step, on(LINE, (64, 32)), jax.random.key(0))
    assert "bevel.noise_addition" in warning.fix


def test_narrow_sums_of_examples_warn_and_of_activations_are_noted():
    def severities(dtype, layout):
        params = two_layers(GRID, *layout, dtype=dtype)
        return {
            f.severity
            for f in found(narrow_sums, sgd_step, params, on(GRID, (16, 32), "data", dtype=dtype))
        }

    assert severities(jnp.float32, TENSOR_PARALLEL) == set()
    assert severities(jnp.bfloat16, DATA_PARALLEL) == {"warning"}
    assert severities(jnp.bfloat16, TENSOR_PARALLEL) == {"warning", "note"}


def test_a_sum_that_was_cast_first_is_fine():
    def step(params, x):
        total = jax.lax.dot_general(
            x, x, (((0,), (0,)), ((), ())), preferred_element_type="float32"
        )
        return params + total

    args = on(LINE, (32, 32)), on(LINE, (16, 32), "data", dtype=jnp.bfloat16)
    assert found(narrow_sums, step, *args) == []

    def narrow(params, x):
        return params + (x.T @ x).astype(jnp.float32)

    (warning,) = found(narrow_sums, narrow, *args)
    assert warning.line.line == narrow.__code__.co_firstlineno + 1

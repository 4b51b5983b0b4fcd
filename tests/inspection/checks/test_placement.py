import jax
import jax.numpy as jnp
import optax
import pytest
from meshes import (
    DATA_PARALLEL,
    GRID,
    LINE,
    SHARDED_DATA_PARALLEL,
    TENSOR_PARALLEL,
    loss,
    on,
    sgd_step,
    two_layers,
)

from bevel.inspection.checks.placement import (
    find_like,
    moved_parameters,
    possible_spec,
    replicated_arrays,
)
from bevel.inspection.compiled_step import Limits, compile_step

SMALL = Limits(large=4 * 32 * 64)


def found(check, step, *args, limits=SMALL, argnums=0):
    return list(check(compile_step(step, args, {}, None, argnums, limits)))


def test_large_replicated_parameters():
    args = two_layers(GRID, *DATA_PARALLEL), on(GRID, (16, 32), "data")
    up, down = found(replicated_arrays, sgd_step, *args)
    assert {up.what.split(" ")[0], down.what.split(" ")[0]} == {"params['up']", "params['down']"}
    assert "each of 8 devices" in up.what and "P('data')" in up.fix + down.fix
    assert found(replicated_arrays, sgd_step, *args, limits=Limits()) == []


@pytest.mark.parametrize("layout", [TENSOR_PARALLEL, SHARDED_DATA_PARALLEL])
def test_split_parameters_are_fine(layout):
    args = two_layers(GRID, *layout), on(GRID, (16, 32), "data")
    assert found(replicated_arrays, sgd_step, *args) == []


def test_a_replicated_batch():
    args = two_layers(GRID, *TENSOR_PARALLEL), on(GRID, (64, 32))
    (finding,) = found(replicated_arrays, sgd_step, *args)
    assert finding.what.startswith("x (64, 32)") and "P('data')" in finding.fix


def test_an_array_that_a_step_closes_over():
    table = jnp.ones((64, 32))
    args = on(LINE, (32,)), on(LINE, (16, 64), "data")
    (finding,) = found(replicated_arrays, lambda p, x: p + jnp.sum(x @ table, axis=0), *args)
    assert "a constant (64, 32)" in finding.what and "as an argument" in finding.fix


def test_a_value_constrained_to_be_whole():
    def step(params, x):
        whole = jax.lax.with_sharding_constraint(2 * x, on(LINE, ()).sharding)
        return params + jnp.sum(whole, axis=0)

    (finding,) = found(replicated_arrays, step, on(LINE, (32,)), on(LINE, (64, 32), "data"))
    assert finding.line.line == step.__code__.co_firstlineno + 1
    assert "constrain it to P('data')" in finding.fix


def test_what_cannot_be_split_is_no_finding():
    assert possible_spec((7, 5), GRID.shape) is None
    assert possible_spec((), GRID.shape) is None
    assert possible_spec((6, 4), GRID.shape) == "P(None, 'data')"
    assert possible_spec((6, 5), GRID.shape) == "P('model')"


def test_parameters_that_come_back_elsewhere():
    args = two_layers(GRID, *SHARDED_DATA_PARALLEL), on(GRID, (256, 32), "data")
    whole = on(GRID, ()).sharding
    moved = found(moved_parameters, jax.jit(sgd_step, out_shardings=whole), *args)
    assert len(moved) == 2 and "out_shardings" in moved[0].fix
    assert any("before the step" in f.what and "P('data'" in f.what for f in moved)
    stay = {name: x.sharding for name, x in args[0].items()}
    assert found(moved_parameters, jax.jit(sgd_step, out_shardings=stay), *args) == []


def test_optimizer_state_is_followed_too():
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(params, state, x):
        updates, state = optimizer.update(jax.grad(loss)(params, x), state)
        return optax.apply_updates(params, updates), state, loss(params, x)

    params = two_layers(GRID, *TENSOR_PARALLEL)
    like = jax.eval_shape(optimizer.init, params)
    state = jax.tree.map(lambda s: on(GRID, s.shape), like)
    args = params, state, on(GRID, (16, 32), "data")
    places = jax.tree.map(lambda x: x.sharding, args[:2])
    elsewhere = jax.tree.map(lambda x: x.sharding, (params, ({"trace": params})["trace"]))
    assert elsewhere[0] == places[0]
    pinned = jax.jit(step, out_shardings=(*places, None))
    assert found(moved_parameters, pinned, *args, argnums=(0, 1)) == []
    moved = found(moved_parameters, step, *args, argnums=(0, 1))
    assert moved and all("state" in f.what for f in moved)


def test_results_of_another_structure_are_not_compared():
    info = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}
    other = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert find_like(info, (other, info), ("a", {"w": "b"})) == ["b"]
    assert find_like(info, {"params": info, "loss": other}, {"params": {"w": "b"}, "loss": 0}) == [
        "b"
    ]
    assert find_like(info, other, "a") == []

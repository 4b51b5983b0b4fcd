import jax
import jax.numpy as jnp
import pytest
from meshes import GRID, TENSOR_PARALLEL, on, sgd_step, two_layers

from bevel.errors import FixArgumentsError
from bevel.inspection.compiled_step import Limits, bytes_of, compile_step


def compiled(step, *args, argnums=0, **kwargs):
    return compile_step(step, args, kwargs, None, argnums, Limits())


def test_arguments_have_paths_shardings_and_roles():
    def step(params, x, unused, *, key):
        return sgd_step(params, x * jax.random.uniform(key))

    params, x = two_layers(GRID, *TENSOR_PARALLEL), on(GRID, (16, 32), "data")
    step = compiled(step, params, x, jnp.ones(3), key=jax.random.key(0))
    paths = [(a.path, a.is_param) for a in step.arguments]
    assert paths == [
        ("params['down']", True),
        ("params['up']", True),
        ("x", False),
        ("unused", False),
        ("key", False),
    ]
    assert step.argument("x").spec == "P('data',)" or "data" in step.argument("x").spec
    assert step.argument("unused").sharding is None
    assert step.argument("params['up']").bytes == 4 * 32 * 64
    assert step.batch_axes == {"data"} and step.mesh == {"data": 4, "model": 2}
    assert step.argument("nothing") is None


def test_the_last_argument_can_be_the_parameters():
    step = compiled(
        lambda x, params: sgd_step(params, x),
        on(GRID, (16, 32), "data"),
        two_layers(GRID, *TENSOR_PARALLEL),
        argnums=-1,
    )
    assert [a.is_param for a in step.arguments] == [False, True, True]


def test_wrong_arguments_say_what_to_write():
    with pytest.raises(FixArgumentsError, match="takes the function of a step, but got int"):
        compiled(3)
    with pytest.raises(FixArgumentsError, match=r"argnums=\(1,\), but"):
        compiled(jnp.sin, jnp.ones(3), argnums=1)
    with pytest.raises(FixArgumentsError, match="is on a mesh"):
        compiled(jnp.sin, jnp.ones(3))


def test_keys_have_bytes():
    assert bytes_of((2,), jax.random.key(0).dtype) == 2 * jax.random.key(0).dtype.itemsize

"""Unknown primitives raise, and so do programs that would hang on a real mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from shard_map_programs import X

from bevel.errors import FixArgumentsError
from bevel.sharding.simulate import simulate_shard_map


def on_x(body, *args, **options):
    options = {"mesh": {"x": 8}, "in_specs": P("x"), "out_specs": P("x")} | options
    return simulate_shard_map(body, **options)(*args)


def test_an_unknown_primitive_that_names_a_mesh_axis_is_refused():
    unknown = jax.extend.core.Primitive("teleport")
    unknown.def_abstract_eval(lambda x, *, axis_name: x)
    with pytest.raises(FixArgumentsError, match="'teleport' uses the mesh axes"):
        on_x(lambda x: unknown.bind(x, axis_name="x"), X)
    with pytest.raises(FixArgumentsError, match="'teleport' uses the mesh axes"):
        on_x(lambda x: lax.map(lambda r: unknown.bind(r, axis_name=("x",)), x), X)


def test_an_unknown_call_with_a_collective_within_is_refused():
    unknown = jax.extend.core.Primitive("wormhole")
    unknown.def_abstract_eval(lambda x, *, program: x)

    def body(x):
        inner = jax.make_jaxpr(lambda v: lax.psum(v, "x"))(x)
        return unknown.bind(x, program=inner)

    with pytest.raises(FixArgumentsError, match="'wormhole' uses the mesh axes"):
        on_x(body, X)


def test_an_axis_name_elsewhere_is_no_mesh_axis():
    """An inner vmap may use names of its own, and a checkpoint name may be any."""

    def body(x):
        centred = jax.vmap(lambda r: r - lax.pmean(r, "rows"), axis_name="rows")(x)
        return checkpoint_name(centred, "x")

    np.testing.assert_array_equal(on_x(body, X, check_vma=False), np.zeros_like(X))


def summed(x):
    return lax.pcast(lax.psum(x, "x"), "x", to="varying")


def test_a_collective_in_a_branch_that_devices_disagree_on_is_refused():
    def body(x):
        return lax.cond(x[0, 0] > 0, summed, lambda v: v, x)

    with pytest.raises(FixArgumentsError, match="branch of a cond"):
        on_x(body, X)


def test_a_collective_in_a_loop_that_devices_leave_at_different_times_is_refused():
    def body(x):
        return lax.while_loop(lambda s: jnp.max(s) > 0.1, lambda s: 0.1 * summed(s), x)

    with pytest.raises(FixArgumentsError, match="while_loop"):
        on_x(body, X)


def test_a_condition_that_differs_along_another_axis_is_fine():
    def body(x):
        other = lax.axis_index("y") > 0
        return lax.cond(other, summed, lambda v: v, x)

    options = {"mesh": {"x": 4, "y": 2}, "in_specs": P("x", "y"), "out_specs": P("x", "y")}
    expected = X.copy().reshape(4, 2, 12)
    expected[..., 6:] = expected[..., 6:].sum(0)
    found = on_x(body, X, **options)
    np.testing.assert_allclose(found, expected.reshape(8, 12), rtol=1e-5)


def test_an_index_in_a_branch_of_ones_own_is_fine():
    def body(x):
        index = lax.axis_index("x").astype(x.dtype)
        return lax.cond(x[0, 0] > 0, lambda v: v * index, lambda v: v, x)

    expected = np.where(X[:, :1] > 0, X * np.arange(8, dtype=np.float32)[:, None], X)
    np.testing.assert_allclose(on_x(body, X), expected, rtol=1e-6)


def test_specs_of_unreduced_arrays_are_refused():
    def body(x):
        return lax.pcast(x, "x", to="unreduced")

    with pytest.raises(FixArgumentsError, match="unreduced"):
        on_x(body, X, out_specs=P(unreduced={"x"}))


def test_callbacks_see_one_device_at_a_time():
    shapes = []

    def look(x):
        shapes.append(np.shape(x))
        return np.asarray(x)

    def body(x):
        return jax.pure_callback(look, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    np.testing.assert_array_equal(on_x(body, X), X)
    assert shapes == [(1, 12)] * 8


def test_prints_come_once_for_each_device(capfd):
    jax.block_until_ready(on_x(lambda x: (jax.debug.print("row {}", x[0, 0]), x)[1], X))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("row") == 8

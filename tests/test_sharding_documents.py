"""The two documents on sharded computation, with `bevel.sharding`: what they state holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_close
from jax.sharding import PartitionSpec as P
from three_ways import init_network, network_loss

from bevel.sharding import describe, make_mesh, place, visualize

# "Introduction to sharded computation".

MESH = make_mesh("x=2,y=4")
ARRAY = jnp.arange(32.0).reshape(4, 8)


def spec_of(x):
    (row,) = describe(x).rows
    return row.spec


def blocks_of(x):
    """The devices of each block of a flat picture, row by row."""
    ((grid,),) = (picture.slices for picture in visualize(x).pictures)
    return grid.devices


def f_elementwise(x):
    return 2 * jnp.sin(x) + 1


def test_an_elementwise_function_follows_its_data():
    x = place(ARRAY, MESH, P("x", "y"))
    assert describe(x).rows[0].shard_shape == (2, 2)
    assert blocks_of(x) == (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,)))
    assert jax.jit(f_elementwise)(x).sharding == x.sharding


def test_a_sum_over_a_split_dimension_is_partly_replicated():
    result = jax.jit(lambda x: x.sum(axis=0))(place(ARRAY, MESH, P("x", "y")))
    assert blocks_of(result) == (((0, 4), (1, 5), (2, 6), (3, 7)),)
    np.testing.assert_array_equal(result, [48, 52, 56, 60, 64, 68, 72, 76])


def test_a_constraint_splits_it_fully():
    line = make_mesh("x=8")

    @jax.jit
    def f_contract_2(x):
        return place(x.sum(axis=0), line, P("x"))

    result = f_contract_2(place(ARRAY, MESH, P("x", "y")))
    assert blocks_of(result) == (tuple((i,) for i in range(8)),)
    np.testing.assert_array_equal(result, [48, 52, 56, 60, 64, 68, 72, 76])


def test_shard_map_sees_one_shard():
    line, shapes = make_mesh("x=8"), []

    def over_shards(f, out_specs):
        return jax.shard_map(f, mesh=line, in_specs=P("x"), out_specs=out_specs)

    def double(x):
        shapes.append(describe(x).rows[0].shard_shape)
        return x * 2

    x = jnp.arange(32)
    np.testing.assert_array_equal(over_shards(double, P("x"))(x), 2 * np.arange(32))
    assert shapes == [(4,)]
    each = over_shards(lambda x: jnp.sum(x, keepdims=True), P("x"))(x)
    np.testing.assert_array_equal(each, [6, 22, 38, 54, 70, 86, 102, 118])
    assert over_shards(lambda x: jax.lax.psum(x.sum(), "x"), P())(x) == 496
    waves = over_shards(f_elementwise, P("x"))(x.astype(jnp.float32))
    assert_close(waves, 2 * np.sin(np.arange(32.0)) + 1, 1e-6)


def layer(x, weights, bias):
    return jax.nn.sigmoid(x @ weights + bias)


def test_the_layer_is_the_same_in_three_ways():
    rng, line = np.random.default_rng(0), make_mesh("x=8")
    x, weights, bias = (rng.normal(size=s).astype(np.float32) for s in ((32,), (32, 4), (4,)))
    expected = 1 / (1 + np.exp(-(x.astype(np.float64) @ weights + bias)))

    automatic = jax.jit(layer)(*place((x, weights), line, P("x")), bias)

    @jax.jit
    def layer_auto(x, weights, bias):
        return layer(*place((x, weights), line, P("x")), bias)

    @jax.jit
    def layer_sharded(x, weights, bias):
        def own(x, weights, bias):
            return jax.nn.sigmoid(jax.lax.psum(x @ weights, "x") + bias)

        in_specs = (P("x"), P("x", None), P(None))
        return jax.shard_map(own, mesh=line, in_specs=in_specs, out_specs=P(None))(x, weights, bias)

    for found in (automatic, layer_auto(x, weights, bias), layer_sharded(x, weights, bias)):
        assert_close(np.asarray(found), expected, 1e-6)


# "Distributed arrays and automatic parallelization". Its pictures are in test_visualize, its
# arrays on disagreeing devices in test_devices.

GRID = make_mesh("a=4,b=2")
X = jax.random.normal(jax.random.key(0), (16, 16))


def test_computation_follows_data():
    y, z = place(X, GRID, P("a", None)), place(X, GRID, P(None, "b"))
    product = jnp.dot(y, z)
    assert spec_of(product) == "P('a', 'b')"
    assert spec_of(jnp.copy(product)) == "P('a', 'b')"
    assert spec_of(jnp.sin(place(X, GRID, P("a", "b")))) == "P('a', 'b')"
    assert_close(product, np.asarray(X, np.float64) @ np.asarray(X, np.float64), 1e-6)


def test_unplaced_arrays_are_moved():
    y = place(X, make_mesh("x=8"), P("x"))
    for sum_ in (y + jnp.ones_like(y), y + jnp.arange(256.0).reshape(16, 16)):
        assert spec_of(sum_).startswith("P('x'")


@pytest.mark.parametrize("spec", [P("b", "a"), P()])
def test_constraints_decide_in_the_middle(spec):
    result = jax.jit(lambda x: place(x + 1, GRID, spec))(place(X, GRID, P("a", "b")))
    assert result.sharding.is_equivalent_to(place(X, GRID, spec).sharding, 2)
    np.testing.assert_array_equal(result, X + 1)


NETWORK = {
    "batch=8": "replicated",
    "batch=4,model=2": [
        ("1/0", P(None, "model")),
        ("1/1", P("model")),
        ("2/0", P("model", None)),
        ("*", P()),
    ],
}


def trained(params, batch):
    """30 steps as in the document, losses before and after. Steps are larger, as the network is
    smaller."""
    gradient, loss = jax.jit(jax.grad(network_loss)), jax.jit(network_loss)
    before = loss(params, batch)

    @jax.jit
    def step(params):
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient(params, batch))

    for _ in range(30):
        params = step(params)
    return params, float(before), float(loss(params, batch))


def test_the_network_trains_alike_on_each_mesh():
    params, batch = init_network()
    expected, before, after = trained(params, batch)
    assert after < before
    for axes, rules in NETWORK.items():
        mesh = make_mesh(axes)
        placed = place(params, mesh, rules)
        found, *losses = trained(placed, place(batch, mesh, P("batch")))
        assert_close(found, expected, 2e-6)
        np.testing.assert_allclose(losses, [before, after], rtol=1e-5)
        for p, q in zip(jax.tree.leaves(found), jax.tree.leaves(placed), strict=True):
            assert p.sharding.is_equivalent_to(q.sharding, p.ndim)


def test_random_numbers_do_not_communicate():
    @jax.jit
    def f(key, x):
        return x + jax.random.uniform(key, x.shape)

    x = place(jnp.arange(24.0), make_mesh("x=8"), P("x"))
    key = jax.random.key(42)
    assert "collective-permute" not in f.lower(key, x).compile().as_text()
    assert spec_of(f(key, x)) == "P('x')"
    np.testing.assert_array_equal(f(key, x), f(key, jnp.arange(24.0)))

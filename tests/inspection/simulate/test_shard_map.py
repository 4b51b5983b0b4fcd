"""The simulation compared with the real `shard_map` on eight virtual devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from shard_map_programs import PROGRAMS, W, X

from bevel.errors import FixArgumentsError
from bevel.sharding.simulate import simulate_shard_map


def real_mesh(sizes):
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def both_ways(program):
    specs = {"in_specs": program.in_specs, "out_specs": program.out_specs, **program.options}
    return (
        jax.shard_map(program.body, mesh=real_mesh(program.mesh), **specs),
        simulate_shard_map(program.body, mesh=program.mesh, **specs),
    )


def is_static(x):
    return isinstance(x, int)


def weights(y):
    return np.cos(np.arange(y.size).reshape(y.shape)).astype(y.dtype)


def results_and_gradient(f, program):
    """What `f` returns, and the gradient of a mix of it, in one compiled program."""
    varied = [i for i, x in enumerate(program.args) if not is_static(x)]

    def run(*values):
        args = list(program.args)
        for i, value in zip(varied, values, strict=True):
            args[i] = value
        outputs = f(*args)
        mix = [jnp.vdot(weights(y), y) for y in jax.tree.leaves(outputs)]
        return sum(mix), outputs

    values = [program.args[i] for i in varied]
    if not program.differentiable:
        return jax.jit(lambda *v: run(*v)[1])(*values), None
    floats = [
        i
        for i, v in enumerate(values)
        if not jnp.issubdtype(jax.tree.leaves(v)[0].dtype, jax.dtypes.prng_key)
    ]
    (_, outputs), gradient = jax.jit(jax.value_and_grad(run, argnums=floats, has_aux=True))(*values)
    return outputs, gradient


def assert_same(found, expected, tolerance=2e-6):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_the_real_one(name):
    program = PROGRAMS[name]
    real, simulation = both_ways(program)
    expected, expected_gradient = results_and_gradient(real, program)
    found, gradient = results_and_gradient(simulation, program)
    tolerance = 1e-2 if "bfloat16" in name else 1e-5
    assert_same(found, expected, tolerance)
    assert_same(gradient, expected_gradient, 10 * tolerance)


def message(error):
    """What an error says, without what differs between a real mesh and its sizes."""
    return type(error), str(error).split("\n---")[0]


BAD = {
    "spec longer than the rank": (lambda x: x, P("x", None, None), P("x"), {}),
    "axis that is not on the mesh": (lambda x: x, P("batch"), P("x"), {}),
    "does not divide": (lambda x: x, P(None, "x"), P("x"), {}),
    "output not the same on all": (lambda x: jnp.sin(x), P("x"), P(), {}),
    "one of two outputs not the same": (
        lambda x: {"a": lax.psum(x, "x"), "b": x},
        P("x"),
        {"a": P(), "b": P()},
        {},
    ),
    "scalar output with a spec": (lambda x: jnp.sum(x), P("x"), P("x"), {}),
    "specs that do not fit the arguments": (lambda x: x, (P("x"), P()), P("x"), {}),
    "specs that do not fit the outputs": (lambda x: (x, x), P("x"), (P("x"),) * 3, {}),
    "not a spec": (lambda x: x, "x", P("x"), {}),
    "unknown axis in a collective": (lambda x: lax.psum(x, "z"), P("x"), P("x"), {}),
    "sum of what is split differently": (
        lambda x: lax.fori_loop(0, 3, lambda i, s: s + x, jnp.zeros((1, 12))),
        P("x"),
        P("x"),
        {},
    ),
    "groups with types": (
        lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]),
        P("x"),
        P("x"),
        {},
    ),
    "manual axis that is not on the mesh": (
        lambda x: x,
        P("x"),
        P("x"),
        {"axis_names": {"x", "w"}},
    ),
    "error in the body": (lambda x: x @ x, P("x"), P("x"), {}),
}


@pytest.mark.parametrize("name", BAD)
def test_raises_what_the_real_one_raises(name):
    body, in_specs, out_specs, options = BAD[name]
    specs = {"in_specs": in_specs, "out_specs": out_specs, **options}
    with pytest.raises(Exception) as expected:
        jax.jit(jax.shard_map(body, mesh=real_mesh({"x": 8}), **specs))(X)
    with pytest.raises(Exception) as found:
        simulate_shard_map(body, mesh={"x": 8}, **specs)(X)
    assert message(found.value) == message(expected.value)


def test_what_cannot_be_differentiated_raises_the_same():
    specs = {"in_specs": P("x"), "out_specs": P()}

    def total(f):
        return lambda x: jnp.sum(f(x))

    real = jax.shard_map(lambda x: lax.pmax(x, "x"), mesh=real_mesh({"x": 8}), **specs)
    simulation = simulate_shard_map(lambda x: lax.pmax(x, "x"), mesh={"x": 8}, **specs)
    with pytest.raises(NotImplementedError) as expected:
        jax.grad(total(real))(X)
    with pytest.raises(NotImplementedError) as found:
        jax.grad(total(simulation))(X)
    assert message(found.value) == message(expected.value)


@pytest.mark.parametrize("name", ["custom_jvp", "custom_vjp", "switch of one's own", "scan"])
def test_second_derivatives_equal_those_of_the_real_one(name):
    program = PROGRAMS[name]

    def curvature(f):
        gradient = jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))
        return jax.jit(jax.grad(lambda x: jnp.vdot(weights(x), gradient(x))))

    real, simulation = (curvature(f)(X) for f in both_ways(program))
    assert_same(simulation, real, 1e-3)


@pytest.mark.parametrize("name", ["psum", "custom_jvp", "while that each leaves when done"])
def test_forward_mode_equals_that_of_the_real_one(name):
    real, simulation = both_ways(PROGRAMS[name])
    expected = jax.jit(lambda x: jax.jvp(real, (x,), (jnp.cos(x),)))(X)
    found = jax.jit(lambda x: jax.jvp(simulation, (x,), (jnp.cos(x),)))(X)
    assert_same(found, expected, 1e-5)


def test_gradient_of_a_weight_that_the_body_closes_over():
    def loss(make):
        def of(w):
            return jnp.sum(make(lambda x: lax.psum(jnp.sin(x @ w), "x"))(X))

        return jax.jit(jax.grad(of))

    specs = {"in_specs": P("x"), "out_specs": P()}
    expected = loss(lambda f: jax.shard_map(f, mesh=real_mesh({"x": 8}), **specs))(W)
    found = loss(lambda f: simulate_shard_map(f, mesh={"x": 8}, **specs))(W)
    assert_same(found, expected, 1e-5)


def test_vmap_of_the_whole():
    program = PROGRAMS["all_gather over two"]
    real, simulation = both_ways(program)
    many = np.stack([X, 2 * X, X - 1])
    assert_same(jax.jit(jax.vmap(simulation))(many), jax.jit(jax.vmap(real))(many), 1e-5)


def test_a_thousand_devices():
    step = simulate_shard_map(
        lambda x: lax.psum(jnp.sum(x) * lax.axis_index("data"), ("data", "model")),
        mesh={"data": 512, "model": 2},
        in_specs=P("data", "model"),
        out_specs=P(),
    )
    ones = jnp.ones((1024, 2), jnp.int32)
    assert int(jax.jit(step)(ones)) == 2 * 2 * sum(range(512))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("how", ["real", "abstract", "context"])
def test_any_mesh_will_do(kind, how):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)
    program = PROGRAMS["psum over two"]
    specs = {"in_specs": program.in_specs, "out_specs": program.out_specs}
    expected = np.sum(np.square(X.reshape(4, 2, 2, 6)), (0, 2))
    if how == "context":
        with jax.set_mesh(mesh):
            found = simulate_shard_map(program.body, **specs)(X)
    else:
        given = mesh if how == "real" else mesh.abstract_mesh
        found = simulate_shard_map(program.body, mesh=given, **specs)(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_arguments_typed_as_sharded_are_refused():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    placed = jax.device_put(X, NamedSharding(mesh, P("x")))
    step = simulate_shard_map(lambda x: x, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    with pytest.raises(FixArgumentsError, match="device_put"):
        step(placed)


def test_a_mesh_besides_the_context_raises_what_the_real_one_raises():
    mesh, other = real_mesh({"x": 8}), real_mesh({"y": 8})
    specs = {"in_specs": P("y"), "out_specs": P("y")}
    with jax.set_mesh(mesh):
        with pytest.raises(ValueError, match="The context mesh"):
            jax.shard_map(lambda x: x, mesh=other, **specs)(X)
        with pytest.raises(ValueError, match="The context mesh"):
            simulate_shard_map(lambda x: x, mesh=other, **specs)(X)


def test_each_devices_view():
    def body(x):
        return jnp.sum(x), {"own": x, "all": lax.psum(x, ("x", "y"))}

    views = simulate_shard_map(body, mesh={"x": 4, "y": 2}, in_specs=P("x", "y"), per_device=True)
    sums, rest = views(X)
    shards = X.reshape(4, 2, 2, 6).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(rest["own"], shards)
    np.testing.assert_allclose(sums, shards.sum((2, 3)), rtol=1e-5)
    everywhere = np.broadcast_to(shards.sum((0, 1)), (4, 2, 2, 6))
    np.testing.assert_allclose(rest["all"], everywhere, rtol=1e-5, atol=1e-6)


def test_a_view_with_out_specs_still_checks_them():
    options = {"mesh": {"x": 8}, "in_specs": P("x"), "per_device": True}
    with pytest.raises(ValueError, match="require replication"):
        simulate_shard_map(lambda x: x, out_specs=P(), **options)(X)
    assert simulate_shard_map(lambda x: x, out_specs=P("x"), **options)(X).shape == (8, 1, 12)


def test_out_specs_may_only_be_left_out_for_a_view():
    with pytest.raises(FixArgumentsError, match="per_device=True"):
        simulate_shard_map(lambda x: x, mesh={"x": 8}, in_specs=P("x"))


def test_a_mesh_that_is_manual_already_is_refused():
    def body(x):
        return simulate_shard_map(lambda y: y, in_specs=P("x"), out_specs=P("x"))(x)

    outer = jax.shard_map(body, mesh=real_mesh({"x": 8}), in_specs=P("x"), out_specs=P("x"))
    with pytest.raises(FixArgumentsError, match="already manual over"):
        outer(X)


def test_bits_of_random_numbers_are_those_of_the_real_one():
    def body(keys):
        own = jax.random.fold_in(keys[0], lax.axis_index("x"))
        return jax.random.bits(own, (1, 4)) ^ jax.random.bits(jax.random.split(own)[1], (1, 4))

    keys = jax.random.split(jax.random.key(1, impl="unsafe_rbg"), 8)
    specs = {"in_specs": P("x"), "out_specs": P("x")}
    real = jax.jit(jax.shard_map(body, mesh=real_mesh({"x": 8}), **specs))(keys)
    found = jax.jit(simulate_shard_map(body, mesh={"x": 8}, **specs))(keys)
    np.testing.assert_array_equal(found, real)

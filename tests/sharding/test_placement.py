"""Placing trees: values stay, shardings follow the rules, and misfits raise."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.errors import FixArgumentsError
from bevel.sharding import describe, logical, make_mesh, place, plan_placement

MESH = make_mesh("data=4,model=2")
RULES = [("*/b", P()), (re.compile(r"layers/0"), P(None, "model")), ("*", P("data"))]


def network():
    rng = np.random.default_rng(0)
    layers = [
        {"w": rng.normal(size=s).astype(np.float32), "b": np.ones(s[1], np.float32)}
        for s in ((8, 16), (16, 4))
    ]
    return {"layers": layers, "scale": 2.0, "key": jax.random.key(0)}


def test_values_stay_and_places_follow_the_rules():
    tree = network()
    placed = place(tree, MESH, RULES)
    assert jax.tree.structure(placed) == jax.tree.structure(tree)
    assert placed["layers"][0]["w"].sharding == NamedSharding(MESH, P(None, "model"))
    assert placed["layers"][1]["w"].sharding == NamedSharding(MESH, P("data"))
    assert placed["layers"][1]["b"].sharding == NamedSharding(MESH, P())
    assert placed["scale"].sharding == NamedSharding(MESH, P())
    assert placed["key"].sharding == NamedSharding(MESH, P())
    for name in ("w", "b"):
        np.testing.assert_array_equal(placed["layers"][0][name], tree["layers"][0][name])


def test_arrays_on_other_devices_are_moved():
    x = jax.device_put(np.arange(8.0), jax.devices()[5])
    other = jax.device_put(np.arange(8.0), NamedSharding(make_mesh("x=8"), P("x")))
    placed = place([x, other], MESH, P("data"))
    assert {leaf.sharding for leaf in placed} == {NamedSharding(MESH, P("data"))}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("spec", [P("model", "data"), P()])
def test_inside_jit_values_are_placed_too(kind, spec):
    mesh = make_mesh("data=4,model=2", axis_types=kind)
    x = place(np.arange(64.0, dtype=np.float32).reshape(8, 8), mesh, P("data", "model"))
    result = jax.jit(lambda x: place(x + 1, mesh, spec))(x)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
    np.testing.assert_array_equal(result, x + 1)


def test_place_in_a_clipped_loss_shards_the_batched_values():
    """Losses are traced for one example, which does not divide over the mesh."""
    x = place(np.arange(64.0, dtype=np.float32).reshape(8, 8) / 64, MESH, P("data"))
    w = place(np.ones((8, 4), np.float32), MESH, P(None, "model"))
    seen = []

    def loss(w, x):
        h = place({"h": x @ w}, MESH, [("h", P("model", "data"))])["h"]
        describe(h, seen.append)
        return jnp.mean(h**2)

    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, batch_axes="model")
    expected = bevel.clipped_grad(lambda w, x: jnp.mean((x @ w) ** 2), l2_clip_norm=1.0)
    np.testing.assert_allclose(fn(w, x), expected(w, x), rtol=1e-5)
    assert {d.rows[0].spec for d in seen} == {"P('model', None, 'data')"}


def test_what_cannot_be_placed_inside_a_program_is_refused():
    x = np.ones((8, 8), np.float32)
    with pytest.raises(FixArgumentsError, match="inside shard_map, where a value is the shard"):
        jax.shard_map(
            lambda x: place(x, MESH, P("data")), mesh=MESH, in_specs=P(), out_specs=P("data")
        )(x)
    mixed = make_mesh("data=4,model=2", axis_types={"data": "explicit"})
    with pytest.raises(FixArgumentsError, match=r"Explicit axes \('data',\) and Auto axes"):
        jax.jit(lambda x: place(x, mixed, P("data")))(place(x, mixed, P("data")))


def test_an_optimizer_keeps_its_state_beside_the_parameters():
    placed = place(network()["layers"], MESH, [("*/b", P()), ("*", P("data"))])
    moments = optax.adam(0.1).init(placed)[0]
    for tree in (moments.mu, moments.nu):
        for p, m in zip(jax.tree.leaves(placed), jax.tree.leaves(tree), strict=True):
            assert m.sharding == p.sharding


def test_only_shapes_are_needed():
    shapes = jax.eval_shape(network)
    placed = place(shapes, MESH, RULES)
    real = place(network(), MESH, RULES)
    for shape, array in zip(jax.tree.leaves(placed), jax.tree.leaves(real), strict=True):
        assert shape.sharding == array.sharding
    abstract = place(shapes, MESH.abstract_mesh, RULES)
    assert abstract["layers"][0]["w"].sharding.spec == P(None, "model")
    with pytest.raises(FixArgumentsError, match="the mesh is abstract"):
        place(network(), MESH.abstract_mesh, RULES)


def test_the_plan_says_which_rule_placed_each_leaf():
    plan = plan_placement(network(), MESH, RULES)
    assert plan.specs["layers"][0] == {"b": P(), "w": P(None, "model")}
    assert plan.shardings["layers"][0]["w"] == NamedSharding(MESH, P(None, "model"))
    rules = {row.path: row.rule for row in plan.rows}
    assert rules["layers/0/b"].startswith("*/b")
    assert rules["layers/0/w"].startswith("/layers/0/")
    assert {row.path: row.reason for row in plan.rows}["scale"] == "a scalar"
    for part in ("layers/1/w", "16x4", "*: P('data')", "/layers/0/: P(None, 'model')", "a scalar"):
        assert part in str(plan)


def test_the_plan_serves_jit_and_shard_map():
    params = network()["layers"]
    plan = plan_placement(params, MESH, [("*/b", P()), ("*", P("data"))])
    double = jax.jit(lambda p: jax.tree.map(lambda x: 2 * x, p), in_shardings=(plan.shardings,))
    assert double(params)[0]["w"].sharding.is_equivalent_to(plan.shardings[0]["w"], 2)
    shapes = []

    def own(p):
        shapes.append(p[1]["w"].shape)
        return p

    jax.shard_map(own, mesh=MESH, in_specs=(plan.specs,), out_specs=plan.specs)(params)
    assert shapes == [(4, 4)]


@pytest.mark.parametrize(
    ("spec", "shape", "expected", "reason"),
    [
        (
            P("model"),
            (3, 4),
            P(),
            "dimension 0 of 3 is not divisible by model=2 and is not split",
        ),
        (
            P(("model", "data")),
            (6,),
            P("model"),
            "divisible by model=2 x data=4 and is split over model",
        ),
        (P("data", "model"), (8, 5), P("data"), "dimension 1 of 5"),
    ],
)
def test_uneven_dimensions_fall_back_and_say_so(spec, shape, expected, reason):
    x = np.zeros(shape, np.float32)
    plan = plan_placement({"w": x}, MESH, spec)
    assert plan.specs == {"w": expected}
    assert reason in plan.rows[0].reason
    with pytest.warns(UserWarning, match=re.escape(reason)):
        assert place({"w": x}, MESH, spec)["w"].sharding.spec == expected


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [("*/kernel", P()), ("*", P())],
            r"'\*/kernel: .*' matches none of the 6 leaves. The first",
        ),
        ([("*", P()), ("layers/0/w", P("data"))], "is never used: earlier rules.*Move it up"),
        ([("layers/*", P())], "no rule matches 'key'"),
        ([("layers/*", P(None, None, "data")), ("*", P())], "more dimensions than the leaf"),
        ([("*", P("batch"))], r"the mesh has axes \('data', 'model'\). Create it with batch=1"),
        ([("*/w", P("data", "data")), ("*", P())], "names an axis twice"),
        ([("*", P(P.UNCONSTRAINED))], "Write None or an axis"),
        ([logical({}), ("*", P())], "'logical axes' matches none"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rules, message):
    tree = network()
    tree["key"] = np.zeros((4,), np.float32)
    with pytest.raises(FixArgumentsError, match=message):
        place(tree, MESH, rules)


def test_a_rule_for_the_rest_may_find_nothing_left():
    assert plan_placement({"w": jnp.zeros(8)}, MESH, [("w", P("data")), ("*", P())]).specs == {
        "w": P("data")
    }
    assert place({}, MESH, [("w", P())]) == {}


def test_what_is_no_array_is_refused():
    with pytest.raises(FixArgumentsError, match="model/activation is a str, not an array"):
        place({"model": {"activation": "relu"}}, MESH)


class Layers(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        x = nn.Dense(8, kernel_init=nn.with_logical_partitioning(init, ("embed", "mlp")))(x)
        return nn.Dense(4, kernel_init=nn.with_partitioning(init, ("model", None)))(x)


AXES = [logical([("embed", None), ("mlp", "model")]), ("*", P())]


@pytest.mark.parametrize("abstract", [False, True])
def test_flax_linen_names_its_axes(abstract):
    init = jax.eval_shape if abstract else lambda f, *a: f(*a)
    variables = init(Layers().init, jax.random.key(0), np.ones((2, 4), np.float32))
    placed = place(variables, MESH, AXES)
    assert jax.tree.structure(placed) == jax.tree.structure(variables)
    kernel = placed["params"]["Dense_0"]["kernel"]
    assert isinstance(kernel, nn.LogicallyPartitioned)
    assert kernel.value.sharding.spec == P(None, "model")
    assert placed["params"]["Dense_1"]["kernel"].value.sharding.spec == P("model")
    assert placed["params"]["Dense_0"]["bias"].sharding.spec == P()
    plan = plan_placement(variables, MESH, AXES)
    assert plan.specs["params"]["Dense_0"]["kernel"] == P(None, "model")
    assert "params/Dense_0/kernel" in {row.path for row in plan.rows}


def test_flax_nnx_names_its_axes():
    init = nnx.with_metadata(
        nnx.initializers.lecun_normal(), out_sharding=("embed", "mlp"), eager_sharding=False
    )
    model = nnx.Linear(4, 8, kernel_init=init, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    placed = place(state, MESH, AXES)
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    assert placed["kernel"][...].sharding.spec == P(None, "model")
    assert placed["bias"][...].sharding.spec == P()
    assert {row.path for row in plan_placement(state, MESH, AXES).rows} == {"bias", "kernel"}
    whole = place(model, MESH, AXES)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(whole(x), model(x), rtol=1e-6)

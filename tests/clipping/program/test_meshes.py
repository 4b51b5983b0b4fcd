"""Losses with sharding constraints, on every kind of mesh, against the oracle."""

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import losses
import numpy as np
import oracle
import pytest
import sharded_losses
from compare import assert_close, cost, cover
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.errors import FixArgumentsError, MoveCollectiveError, PadBatchError

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
TOLERANCE = 2e-5


def mesh_of(shape, *kinds):
    return jax.make_mesh(shape, ("data", "model")[: len(shape)], axis_types=kinds)


@dataclass(frozen=True)
class Half(sharded_losses.Reshard):
    """An Explicit data axis to reshard over, and an Auto model axis to constrain over."""

    def __call__(self, x, *spec):
        free = P.UNCONSTRAINED
        x = jax.sharding.reshard(x, P(*(s if s == "data" else None for s in spec)))
        return lax.with_sharding_constraint(x, P(*(s if s == "model" else free for s in spec)))

    def matmul(self, x, w, *spec):
        explicit = P(*(s if s == "data" else None for s in spec))
        return self(jnp.matmul(x, w, out_sharding=explicit), *spec)

    def jit(self, fun, in_specs, out_specs):
        return jax.jit(fun)


SETTINGS = {
    "auto (8,) named": (sharded_losses.Named, ((8,), AUTO), False),
    "auto (4, 2) named": (sharded_losses.Named, ((4, 2), AUTO, AUTO), False),
    "auto (4, 2) bare": (sharded_losses.Bare, ((4, 2), AUTO, AUTO), True),
    "explicit (8,)": (sharded_losses.Reshard, ((8,), EXPLICIT), True),
    "explicit (4, 2)": (sharded_losses.Reshard, ((4, 2), EXPLICIT, EXPLICIT), True),
    "explicit data, auto model": (Half, ((4, 2), EXPLICIT, AUTO), True),
}


def sharded(mask, mesh):
    return jax.device_put(mask, NamedSharding(mesh, P("data")))


# How the function is called: options, a transformation, and the padding mask.
CALLS: dict[str, tuple[dict, Any, Any]] = {
    "eager": ({}, lambda f: f, None),
    "jit": ({}, jax.jit, None),
    "microbatched": ({"microbatch_size": 8}, lambda f: f, None),
    "sharded mask": ({}, jax.jit, sharded),
    "unsharded mask": ({}, lambda f: f, lambda mask, mesh: mask),
    "axes declared": ({"batch_axes": "data"}, jax.jit, None),
}


@cache
def truth(name, masked):
    case = sharded_losses.CASES[name]
    loss = case.make(sharded_losses.Unconstrained())
    padding = padding_of(case) if masked else None
    limit = oracle.middle_norm(loss, case.params, case.batch)
    options = {"clip_norm": limit, "padding": padding}
    return limit, oracle.clipped_sum(loss, case.params, case.batch, **options)


def padding_of(case):
    return np.arange(case.batch["x"].shape[0]) % 3 == 2


def in_mesh(mesh, wanted):
    return (
        jax.set_mesh(mesh)
        if wanted
        else jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh())
    )


@pytest.mark.parametrize("name, setting, call", cover(sharded_losses.CASES, SETTINGS, CALLS))
def test_constrained_loss_equals_the_oracle(name, setting, call):
    case = sharded_losses.CASES[name]
    form, mesh_arguments, context = SETTINGS[setting]
    options, transformed, make_mask = CALLS[call]
    limit, expected = truth(name, make_mask is not None)
    mesh = mesh_of(*mesh_arguments)
    fn = bevel.clipped_grad(
        case.make(form(mesh)), l2_clip_norm=limit, return_grad_norms=True, **options
    )
    params, batch = case.place(mesh)
    mask = None if make_mask is None else make_mask(jnp.asarray(padding_of(case)), mesh)
    with in_mesh(mesh, context):
        grad, aux = transformed(fn)(params, batch, is_padding_example=mask)
    assert_close(grad, expected.grad, TOLERANCE)
    norms = expected.norms if mask is None else np.where(mask, 0, expected.norms)
    np.testing.assert_allclose(aux.grad_norms, norms, rtol=TOLERANCE)
    for key, g in grad.items():
        # Under jit on Auto axes the compiler may still split the gradient of a shared parameter.
        left_to_the_compiler = transformed is jax.jit and params[key].sharding.is_fully_replicated
        if not left_to_the_compiler:
            assert g.sharding.is_equivalent_to(params[key].sharding, g.ndim), (key, g.sharding)


# Without its shard_map, this loss is a different program.
COSTED = [name for name in sharded_losses.CASES if name != "shard_map_over_model"]


@pytest.mark.parametrize("name", COSTED)
def test_constraints_cost_nothing(name):
    case = sharded_losses.CASES[name]
    mesh = mesh_of((4, 2), AUTO, AUTO)
    # A larger batch than elsewhere, because buffers of a few bytes do not matter.
    tall = jax.tree.map(lambda x: jnp.concatenate([x] * 16), case.batch)
    arguments = dataclasses.replace(case, batch=tall).place(mesh)

    def step(form):
        return bevel.clipped_grad(case.make(form), l2_clip_norm=1.0, batch_axes="data")

    forms = sharded_losses.Unconstrained(), sharded_losses.Named(mesh)
    free, bound = (cost(step(form), *arguments) for form in forms)
    # Some constraints request a gathered value, which has a cost without privacy too.
    free_grad, bound_grad = (cost(jax.grad(case.make(form)), *arguments) for form in forms)
    for what in ("flops", "memory"):
        inherent = max(1.0, bound_grad[what] / free_grad[what])
        assert bound[what] <= 1.1 * inherent * free[what], what
    assert bound["all-to-all"] <= free["all-to-all"]


def test_plain_vmap_pays_for_what_bevel_moves():
    """Without this failure of plain `vmap`, this file would test nothing."""
    mesh = mesh_of((8,), AUTO)
    batch = jax.device_put(jnp.ones((256, 64)), NamedSharding(mesh, P("data")))

    def loss(params, x):
        x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))
        return jnp.mean((x @ params) ** 2)

    ours = cost(bevel.clipped_grad(loss, l2_clip_norm=1.0), jnp.ones((64, 8)), batch)
    plain = bevel.clipped_grad(loss, l2_clip_norm=1.0, engine="vmap")
    assert cost(plain, jnp.ones((64, 8)), batch)["flops"] > 4 * ours["flops"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_user_level_clipping_on_every_mesh(setting):
    form, mesh_arguments, context = SETTINGS[setting]
    mesh = mesh_of(*mesh_arguments)
    case = sharded_losses.CASES["on_input"]
    users = {key: jnp.stack([x, 2 * x[::-1]], axis=1) for key, x in case.batch.items()}
    loss = case.make(sharded_losses.Unconstrained())
    expected = oracle.clipped_sum(loss, case.params, users, clip_norm=0.3, keep_batch_dim=False)
    placed = jax.device_put(users, NamedSharding(mesh, P("data")))
    params, _ = case.place(mesh)
    fn = bevel.clipped_grad(case.make(form(mesh)), l2_clip_norm=0.3, keep_batch_dim=False)
    with in_mesh(mesh, context):
        grad = fn(params, placed)
    assert_close(grad, expected.grad, TOLERANCE)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_a_batch_that_the_mesh_does_not_divide_must_be_padded(kind):
    mesh = mesh_of((8,), kind)
    form = sharded_losses.Named(mesh) if kind == AUTO else sharded_losses.Reshard(mesh)
    loss = sharded_losses.CASES["on_input"].make(form)
    case = sharded_losses.CASES["on_input"]
    batch = jax.tree.map(lambda x: jnp.concatenate([x, x[:4]]), case.batch)
    with jax.set_mesh(mesh), pytest.raises(PadBatchError, match=r"8 equal shards.*16.*is_padding"):
        bevel.clipped_grad(loss, l2_clip_norm=1.0)(case.params, batch)


def test_python_float_parameters_work_on_explicit_meshes():
    mesh = mesh_of((8,), EXPLICIT)
    data = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("data")))

    def loss(param, x):
        return 0.5 * jnp.mean((jax.sharding.reshard(x, P("data")) - param) ** 2)

    with jax.set_mesh(mesh):
        grad = bevel.clipped_grad(loss, l2_clip_norm=jnp.inf)(4.0, data)
    np.testing.assert_allclose(grad, np.sum(4.0 - np.arange(16.0)))


def test_explicit_named_shardings_work_without_a_mesh_in_context():
    mesh = mesh_of((4, 2), EXPLICIT, EXPLICIT)
    case = sharded_losses.CASES["on_input"]
    params, batch = case.place(mesh)

    def loss(params, batch):
        x = jax.sharding.reshard(batch["x"], NamedSharding(mesh, P("data")))
        h = jnp.matmul(x, params["w"], out_sharding=NamedSharding(mesh, P("data", None)))
        return jnp.mean((jnp.tanh(h) @ params["v"] - batch["y"]) ** 2)

    limit, expected = truth("on_input", False)
    grad = bevel.clipped_grad(loss, l2_clip_norm=limit)(params, batch)
    assert_close(grad, expected.grad, TOLERANCE)


# Inside shard_map.

MANUAL_LOSSES = ("mlp", "tied", "remat", "scanned_layers", "custom_vjp", "weight_decay_in_loss")


def over_data(fun, check_vma, out_specs, mesh=None):
    mesh = mesh or mesh_of((8,), AUTO)
    specs = (P(), P("data"))
    run = jax.shard_map(fun, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check_vma)
    return jax.jit(run)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", MANUAL_LOSSES)
def test_shards_clip_their_own_examples(name, check_vma):
    case = losses.make(name, batch_size=16)
    limit = oracle.middle_norm(case.loss, case.params, case.batch)
    expected = oracle.clipped_sum(case.loss, case.params, case.batch, clip_norm=limit)
    options = {"l2_clip_norm": limit, "return_values": True, "return_grad_norms": True}

    def reduced(params, batch):
        return bevel.clipped_grad(case.loss, reduce_axes="data", **options)(params, batch)

    grad, aux = over_data(reduced, check_vma, (P(), P("data")))(case.params, case.batch)
    assert_close(grad, expected.grad, TOLERANCE)
    np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=TOLERANCE)
    np.testing.assert_allclose(aux.values, expected.values, rtol=TOLERANCE)


def test_the_shards_own_sum_is_typed_as_varying():
    case = losses.make("linear", batch_size=16)
    fn = bevel.clipped_grad(case.loss, l2_clip_norm=0.5)
    with pytest.raises(ValueError, match=r"vary|replicat"):
        over_data(fn, True, P())(case.params, case.batch)
    stacked = over_data(lambda p, b: jax.tree.map(lambda g: g[None], fn(p, b)), True, P("data"))
    total = jax.tree.map(lambda g: g.sum(0), stacked(case.params, case.batch))
    expected = oracle.clipped_sum(case.loss, case.params, case.batch, clip_norm=0.5)
    assert_close(total, expected.grad, TOLERANCE)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_collective_over_the_batch_inside_the_loss_is_refused(check_vma):
    case = losses.make("linear", batch_size=16)

    def coupled(params, batch):
        return lax.pmean(case.loss(params, batch), "data")

    fn = bevel.clipped_grad(coupled, l2_clip_norm=1.0)
    with pytest.raises(MoveCollectiveError, match=r"reduce_axes"):
        over_data(fn, check_vma, P("data"))(case.params, case.batch)


def test_an_inner_gradient_that_autodiff_would_sum_over_shards_is_refused():
    case = losses.make("linear", batch_size=16)
    frozen = case.params["w"]

    def loss(params, batch):
        inner = jax.grad(lambda w: jnp.sum(batch["x"] @ w))(frozen)
        return case.loss(params, batch) + jnp.sum(inner)

    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0)
    with pytest.raises(MoveCollectiveError, match="mixes the examples"):
        over_data(fn, True, P("data"))(case.params, case.batch)


@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_tensor_parallel_shards_add_their_squares(microbatch_size):
    case = sharded_losses.CASES["tensor_parallel"]
    loss = case.make(sharded_losses.Unconstrained())
    limit = oracle.middle_norm(loss, case.params, case.batch)
    expected = oracle.clipped_sum(loss, case.params, case.batch, clip_norm=limit)
    mesh = mesh_of((2, 2), AUTO, AUTO)

    def shard_loss(params, batch):
        out = lax.psum(jnp.tanh(batch["x"] @ params["w"]) @ params["v"], "model")
        return jnp.mean((out - batch["y"]) ** 2)

    fn = bevel.clipped_grad(
        shard_loss,
        l2_clip_norm=limit,
        reduce_axes="data",
        return_grad_norms=True,
        microbatch_size=microbatch_size,
    )
    specs = {"w": P(None, "model"), "v": P("model")}
    run = jax.shard_map(fn, mesh=mesh, in_specs=(specs, P("data")), out_specs=(specs, P("data")))
    grad, aux = jax.jit(run)(case.params, case.batch)
    assert_close(grad, expected.grad, TOLERANCE)
    np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=TOLERANCE)


def test_a_loss_that_differs_along_another_axis_is_refused():
    case = losses.make("linear", batch_size=16)
    fn = bevel.clipped_grad(case.loss, l2_clip_norm=1.0, batch_axes=())
    with pytest.raises(FixArgumentsError, match="name them in batch_axes"):
        over_data(fn, True, P("data"))(case.params, case.batch)


def test_a_sequence_may_be_split_over_its_own_axis():
    mesh = mesh_of((2, 2), AUTO, AUTO)  # data, and positions over "model"
    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)
    batch = jnp.asarray(rng.normal(size=(4, 6, 8)), jnp.float32)

    def whole(params, x):
        return jnp.mean(jnp.tanh(x @ params) ** 2)

    def split(params, x):
        return lax.pmean(whole(params, x), "model")

    fn = bevel.clipped_grad(split, l2_clip_norm=0.02, batch_axes="data", reduce_axes="data")
    specs = (P(), P("data", "model"))
    run = jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=P()))
    expected = oracle.clipped_sum(whole, params, batch, clip_norm=0.02)
    assert_close(run(params, batch), expected.grad, TOLERANCE)


def test_keys_are_those_of_the_global_batch_inside_shard_map():
    def loss(params, x, key):
        return jnp.mean(params * x * jax.random.normal(key, x.shape))

    fn = bevel.clipped_grad(loss, l2_clip_norm=jnp.inf, prng_argnum=2, return_values=True)
    x, key = jnp.ones((16, 3)), jax.random.key(1)
    whole = fn(1.0, x, key)[1].values
    inside = jax.shard_map(
        lambda p, x, k: fn(p, x, k)[1].values,
        mesh=mesh_of((8,), AUTO),
        in_specs=(P(), P("data"), P()),
        out_specs=P("data"),
    )
    np.testing.assert_allclose(jax.jit(inside)(1.0, x, key), whole, rtol=1e-6)


def test_reduce_axes_outside_shard_map_is_an_error():
    case = losses.make("linear")
    fn = bevel.clipped_grad(case.loss, l2_clip_norm=1.0, reduce_axes="data")
    with pytest.raises(FixArgumentsError, match=r"inside jax\.shard_map"):
        fn(case.params, case.batch)

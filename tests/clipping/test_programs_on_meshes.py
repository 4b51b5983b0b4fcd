"""Odd programs on Auto, Explicit and mixed meshes, and inside shard_map."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_close
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from programs import (
    AUTO,
    BATCH,
    EXPLICIT,
    PROGRAMS,
    TOLERANCE,
    B,
    D,
    K,
    Program,
    W,
    check,
    dense,
    draw,
    reference,
    squared,
)

import bevel
from bevel.errors import BevelError, FixLossError

# On meshes: programs that ask for nothing, in every kind of mesh.

MESHES = {
    "auto": ((4, 2), ("data", "model"), (AUTO, AUTO)),
    "explicit": ((4, 2), ("data", "model"), (EXPLICIT, EXPLICIT)),
    "explicit data": ((4, 2), ("data", "model"), (EXPLICIT, AUTO)),
    "explicit model": ((4, 2), ("data", "model"), (AUTO, EXPLICIT)),
    "data last": ((2, 4), ("model", "data"), (AUTO, AUTO)),
}
ON_MESHES = (
    "ref, written",
    "while on the example",
    "scan, mixed carry",
    "cond on both",
    "nested remat",
    "custom_vmap",
    "keys in the batch",
    "whole numbers in the batch",
    "solve",
    "custom_linear_solve",
    "keys in the batch, no batch dimension",
)
SPECS = (P("data"), P(("data", "model")), P("model"), P())


def make_mesh(name):
    shape, names, kinds = MESHES[name]
    return jax.make_mesh(shape, names, axis_types=kinds)


def on_mesh(mesh, params_spec, batch_spec):
    def placed(tree, role):
        spec = params_spec if role == "params" else batch_spec
        return jax.device_put(tree, NamedSharding(mesh, spec))

    return placed


@pytest.mark.parametrize("name, mesh", [(n, m) for n in ON_MESHES for m in ("auto", "explicit")])
def test_on_a_mesh(name, mesh):
    # The bodies of linear solves are typed on the Explicit mesh: JAX cannot batch them either.
    typed = mesh == "explicit" and name in ("solve", "custom_linear_solve")
    mesh = make_mesh(mesh)
    with jax.set_mesh(mesh), contextlib.suppress(*[FixLossError] * typed):
        check(PROGRAMS[name], on_mesh(mesh, P(), P("data")), jax.jit)


@pytest.mark.parametrize(
    "mesh, spec", [(m, s) for m in MESHES for s in SPECS[m == "explicit" :: 2]]
)
def test_batch_on_any_axes(mesh, spec):
    mesh = make_mesh(mesh)
    with jax.set_mesh(mesh):
        check(Program(dense), on_mesh(mesh, P(None, "data"), spec))


@pytest.mark.parametrize("mesh", MESHES)
def test_declared_axes_microbatches_and_no_batch_dimension(mesh):
    mesh = make_mesh(mesh)
    options = {"batch_axes": ("data",), "microbatch_size": 4}
    with jax.set_mesh(mesh):
        check(
            Program(dense, keep_batch_dim=False), on_mesh(mesh, P(), P("data")), jax.jit, **options
        )


def mask_for(mesh, spec):
    return jax.device_put(jnp.arange(B) % 3 == 0, NamedSharding(mesh, spec))


@pytest.mark.parametrize("spec", [P(), P("data")], ids=["replicated", "sharded"])
@pytest.mark.parametrize("mesh", ["auto", "explicit"])
def test_mask_on_a_mesh(mesh, spec):
    mesh = make_mesh(mesh)
    with jax.set_mesh(mesh):
        mask = mask_for(mesh, spec)
        placed = on_mesh(mesh, P(), P("data"))
        fn = bevel.clipped_grad(dense, l2_clip_norm=1.0)
        got = fn(placed(W, "params"), placed(BATCH, "batch"), is_padding_example=mask)
    kept = jax.tree.map(lambda x: x[np.arange(B) % 3 != 0], BATCH)
    assert_close(got, reference(dense, W, kept, clip_norm=1.0)[1], TOLERANCE)


# On meshes: programs that ask for a place. (program, the same with requests, spec of the params).

constrain, reshard = lax.with_sharding_constraint, jax.sharding.reshard
TALL = draw(8, K)
FREE = P.UNCONSTRAINED


def top(w):
    return (reshard(w, P()) if jax.typeof(w).sharding.spec[0] == "data" else w)[:K]


def mean_square_of_pieces(w, batch, check_vma=True):
    def penalty(piece):
        return lax.psum(jnp.sum(piece**2), "data") / lax.axis_size("data")

    mapped = jax.shard_map(
        penalty, in_specs=P("data"), out_specs=P(), axis_names={"data"}, check_vma=check_vma
    )
    return squared(batch["y"] @ top(w), batch) + mapped(w)


def mean_square(w, batch):
    return squared(batch["y"] @ w[:K], batch) + jnp.sum(w**2) / 4


def sine_of_centred_pieces(w, batch):
    def centre(piece):
        return piece - jnp.mean(piece, axis=0, keepdims=True)

    mapped = jax.shard_map(centre, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    return squared(batch["y"] @ top(w), batch) + jnp.sum(jnp.sin(mapped(w)))


def sine_of_centred(w, batch):
    pieces = w.reshape(4, -1, K)
    centred = pieces - jnp.mean(pieces, axis=1, keepdims=True)
    return squared(batch["y"] @ w[:K], batch) + jnp.sum(jnp.sin(centred))


def times_mesh_size(w, batch):
    return jax.sharding.get_abstract_mesh().shape["data"] * dense(w, batch)


def mlp(p, b):
    return squared(jnp.tanh(b["x"] @ p["w"]) @ p["v"], b)


def unreduced_mlp(p, b):
    h = reshard(jnp.tanh(b["x"] @ p["w"]), P("data", "model"))
    v = reshard(p["v"], P("model", None))
    y = jnp.matmul(h, v, out_sharding=P("data", None, unreduced={"model"}))
    return squared(reshard(y, P("data", None)), b)


def auto_inside(w, b):
    layer = jax.sharding.auto_axes(lambda x, w: jnp.tanh(x @ w), out_sharding=P("data", None))
    return squared(layer(b["x"], w), b)


def over_both_axes(w, b):
    y = jnp.tanh(reshard(b["x"], P(("data", "model"), None)) @ w)
    return squared(reshard(y, P("data", None)), b)


MLP = {"w": draw(D, 8), "v": draw(8, K)}
READS_THE_MESH = {
    "size of the mesh": (Program(lambda w, b: 4 * dense(w, b)), times_mesh_size, P()),
    "pieces of a parameter": (Program(mean_square, TALL), mean_square_of_pieces, P("data")),
    "pieces of a parameter, untyped": (
        Program(mean_square, TALL),
        functools.partial(mean_square_of_pieces, check_vma=False),
        P("data"),
    ),
    "means of pieces": (Program(sine_of_centred, TALL), sine_of_centred_pieces, P("data")),
}
PLACED = {
    "auto": {
        "unconstrained dimension": (
            Program(dense),
            lambda w, b: squared(constrain(jnp.tanh(b["x"] @ w), P("data", FREE)), b),
            P(),
        ),
        "two axes on the batch": (
            Program(dense),
            lambda w, b: squared(constrain(jnp.tanh(b["x"] @ w), P(("data", "model"), None)), b),
            P(),
        ),
        "whole numbers": (
            PROGRAMS["whole numbers in the batch"],
            lambda w, b: squared(w[constrain(b["k"], P("data"))], b),
            P(),
        ),
        "keys": (
            PROGRAMS["keys in the batch"],
            lambda w, b: squared(
                (b["x"] + jax.random.normal(constrain(b["k"], P("data"))[0], (1, D))) @ w, b
            ),
            P(),
        ),
        "takes one example only": (
            Program(dense),
            lambda w, b: dense(w, b | {"x": constrain(b["x"], P("data", None)).reshape(1, D)}),
            P(),
        ),
        **READS_THE_MESH,
    },
    "explicit": {
        "out_sharding": (
            Program(dense),
            lambda w, b: squared(jnp.tanh(jnp.matmul(b["x"], w, out_sharding=P("data", None))), b),
            P(),
        ),
        "two axes on the batch": (Program(dense), over_both_axes, P()),
        "unreduced": (Program(mlp, MLP), unreduced_mlp, P()),
        "auto_axes inside": (Program(dense), auto_inside, P()),
        **READS_THE_MESH,
    },
}


@pytest.mark.parametrize("mesh, name", [(m, n) for m in PLACED for n in PLACED[m]])
def test_with_requests(mesh, name):
    program, loss, spec = PLACED[mesh][name]
    mesh = make_mesh(mesh)
    with jax.set_mesh(mesh):
        check(program, on_mesh(mesh, spec, P("data")), jax.jit, loss=loss)


def test_outer_gradient_through_a_constraint_on_a_parameter():
    def outer(w, loss):
        return jnp.sum(jnp.sin(bevel.clipped_grad(loss, l2_clip_norm=1.0)(w, BATCH)))

    def constrained(w, b):
        return dense(constrain(w, P(None, "data")), b)

    with jax.set_mesh(make_mesh("auto")):
        gradient = jax.jit(jax.grad(outer), static_argnums=1)
        assert_close(gradient(W, constrained), np.asarray(gradient(W, dense)), 1e-4)


# Inside shard_map. (program, loss of a shard, specs of the params).


def row_parallel(p, b):
    return squared(lax.psum(jnp.tanh(b["x"] @ p["w"]) @ p["v"], "model"), b)


def columns(w, b):
    return jnp.sum(jnp.tanh(b["x"] @ w) ** 2)


def columns_of_shards(w, b):
    return lax.psum(columns(w, b), "model")


def shared_gain(p, b):
    return squared((jnp.tanh(b["x"] @ p["w"]) * p["gain"][None]) @ p["v"], b)


def shared_gain_of_shards(p, b):
    h = jnp.tanh(b["x"] @ p["w"]) * p["gain"][None]
    return squared(lax.psum(h @ p["v"], "model"), b)


SPLIT = {"w": P(None, "model"), "v": P("model", None)}
IN_SHARDS = {
    "replicated": (Program(dense), dense, P()),
    "tensor parallel": (Program(mlp, MLP), row_parallel, SPLIT),
    "columns": (Program(columns), columns_of_shards, P(None, "model")),
    "shared by varying values": (
        Program(shared_gain, MLP | {"gain": jnp.array([1.5])}),
        shared_gain_of_shards,
        SPLIT | {"gain": P()},
    ),
    "columns, never reduced": (Program(columns), columns, P(None, "model")),
}


def in_shard_map(mesh, specs, check_vma=True, axis_names=(), **options):
    def wrap(fn):
        return jax.jit(
            jax.shard_map(
                fn,
                mesh=mesh,
                in_specs=(specs, P("data")),
                out_specs=(specs, bevel.AuxiliaryOutput(None, P("data"), None)),
                check_vma=check_vma,
                axis_names=set(axis_names),
                **options,
            )
        )

    return wrap


@pytest.mark.parametrize("check_vma", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize("name", IN_SHARDS)
def test_in_shard_map(name, check_vma):
    """Right, or refused: never clipped by the norm of a piece."""
    program, loss, specs = IN_SHARDS[name]
    mesh = make_mesh("auto")
    wrap = in_shard_map(mesh, specs, check_vma)
    options = {"reduce_axes": ("data",)}
    try:
        check(program, wrap=wrap, loss=loss, **options)
    except BevelError:
        assert name == "columns, never reduced" or not check_vma
    else:
        assert check_vma or name == "replicated"


def constrained_mlp(p, b):
    h = constrain(jnp.tanh(b["x"] @ constrain(p["w"], P(None, "model"))), P(None, "model"))
    return squared(constrain(h @ p["v"], P(None, None)), b)


def resharded_mlp(p, b):
    h = reshard(jnp.tanh(b["x"] @ p["w"]), P(None, "model"))
    return squared(jnp.matmul(h, p["v"], out_sharding=P(None, None)), b)


@pytest.mark.parametrize("check_vma", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize(
    "mesh, loss", [("auto", constrained_mlp), ("explicit", resharded_mlp)], ids=["auto", "explicit"]
)
def test_in_shard_map_over_data_alone(mesh, loss, check_vma):
    mesh = make_mesh(mesh)
    specs = {"w": P(), "v": P()}
    options = {"reduce_axes": ("data",), "microbatch_size": 1}

    def placed(tree, role):
        shardings = {name: NamedSharding(mesh, SPLIT[name]) for name in SPLIT}
        return jax.device_put(
            tree, shardings if role == "params" else NamedSharding(mesh, P("data"))
        )

    with jax.set_mesh(mesh):
        wrap = in_shard_map(mesh, specs, check_vma, axis_names=("data",))
        check(Program(mlp, MLP), placed, wrap, loss, **options)


def test_random_keys_in_shard_map_follow_the_batch():
    def dropped(w, b, key):
        return dense(
            w, b | {"x": b["x"] * jax.random.bernoulli(key, 0.5, (1, D)).astype("float32")}
        )

    mesh, key = make_mesh("auto"), jax.random.key(3)
    expected = bevel.clipped_grad(dropped, l2_clip_norm=1.0, prng_argnum=2)(W, BATCH, key)
    for axes in ("data",), ("model", "data"):
        fn = bevel.clipped_grad(
            dropped, l2_clip_norm=1.0, prng_argnum=2, batch_axes=axes, reduce_axes=axes
        )
        mapped = jax.shard_map(fn, mesh=mesh, in_specs=(P(), P(axes), P()), out_specs=P())
        assert_close(jax.jit(mapped)(W, BATCH, key), np.asarray(expected), TOLERANCE)

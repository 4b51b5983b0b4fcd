"""Programs of `shard_map` that use every collective, loop, branch and kind of gradient.

A new row joins every test of the simulation.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Program:
    """A body and what it is mapped with. `differentiable`: JAX can differentiate the whole."""

    body: Callable[..., Any]
    mesh: dict[str, int]
    in_specs: Any
    out_specs: Any
    args: tuple[Any, ...]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    differentiable: bool = True


X = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)
BATCH = np.random.default_rng(2).normal(size=(16, 12)).astype(np.float32)
ONE = {"x": 8}
TWO = {"x": 4, "y": 2}
THREE = {"x": 2, "y": 2, "z": 2}
UNTYPED = {"check_vma": False}


def on_x(body, *args, **options):
    """A program on one axis with rows split over it, in and out."""
    return Program(body, ONE, P("x"), P("x"), args or (X,), **options)


def on_xy(body, *args, **options):
    return Program(body, TWO, P("x", "y"), P("x", "y"), args or (X,), **options)


def weighted(x):
    """Tells devices apart, so that a wrong order shows."""
    return x * (1 + lax.axis_index("x")).astype(x.dtype)


def inner_gradient(w, x):
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)


def tensor_parallel(x, up, down):
    return lax.psum(jnp.tanh(x @ up) @ down, "y")


def training_step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.sin(x @ w) ** 2))(w)
    return w - 0.1 * grad / lax.axis_size("x"), lax.pmean(loss, "x")


def own_gradients(w, x):
    w = lax.pcast(w, "x", to="varying")
    return inner_gradient(w, x)[None]


def ring_sum(x):
    size = lax.axis_size("x")
    right = [(i, (i + 1) % size) for i in range(size)]

    def hop(_, state):
        passed, total = state
        passed = lax.ppermute(passed, "x", right)
        return passed, total + passed

    return lax.fori_loop(0, size - 1, hop, (x, x))[1]


def loop_until_all_agree(x):
    def go_on(state):
        return lax.pmax(jnp.max(jnp.abs(state)), "x") > 0.1

    return lax.while_loop(go_on, lambda s: 0.5 * s, x)


def loop_of_own_length(x):
    return lax.while_loop(lambda s: jnp.max(jnp.abs(s)) > 0.1, lambda s: 0.5 * s, x)


def same_branch_for_all(x):
    positive = lax.psum(jnp.sum(x), "x") > 0
    return lax.cond(positive, lambda v: lax.ppermute(v, "x", [(0, 1)]), lambda v: v, x)


def divided(x):
    """Whose derivative divides, by zero where the branch is not taken."""
    return x / (1 + x * x)


def own_branch(x):
    return lax.switch(lax.axis_index("x") % 3, [jnp.sin, divided, lambda v: v * v], x)


def scan_with_sums(x):
    def step(carry, row):
        carry = carry + lax.pmean(row, "x") * jnp.sin(row)
        return carry, lax.psum(carry, "x")

    last, rows = lax.scan(step, jnp.zeros_like(x[0]), x.T @ x)
    return last + jnp.sum(rows, 0)


def remat(w, x):
    @jax.checkpoint
    def layer(w, x):
        return jnp.sin(lax.psum(jnp.sin(x @ w), "x"))

    return jax.grad(lambda w: jnp.sum(layer(w, x)))(w)


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x)


@straight_through.defjvp
def _(primals, tangents):
    return straight_through(*primals), 2 * tangents[0]


@jax.custom_vjp
def sum_backward(x):
    """The identity, whose cotangents are summed over devices."""
    return x


sum_backward.defvjp(lambda x: (sum_backward(x), None), lambda _, ct: (weighted(lax.psum(ct, "x")),))


@jax.custom_batching.custom_vmap
def not_batched(x):
    return 2 * x


@not_batched.def_vmap
def _(size, batched, x):
    raise AssertionError("the real shard_map does not vmap")


def noise(key, x):
    own = jax.random.fold_in(key, lax.axis_index("x"))
    return x + jax.random.normal(own, x.shape) * jax.random.normal(key, x.shape)


def inner_shard_map(x, w):
    def columns(w):
        return jnp.sin(w) * (1 + lax.axis_index("y")).astype(w.dtype)

    within = jax.shard_map(columns, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})
    return lax.psum(x, "x") @ within(w)


def constrained(x, w):
    h = lax.with_sharding_constraint(x @ w, P(None, "y"))
    return lax.psum(jnp.tanh(h), "x")


def many_results(tree):
    return {"sum": lax.psum(tree["a"], "x"), "rows": (tree["a"] * tree["b"], tree["b"])}


def solve(x):
    a = 2 * jnp.eye(12) + 0.1 * lax.psum(x.T @ x, "x")
    return jnp.linalg.solve(a, x.T).T


GROUPS = [[0, 3, 5, 6], [1, 2, 4, 7]]
key = jax.random.key

PROGRAMS = {
    "psum": Program(lambda x: lax.psum(weighted(x), "x"), ONE, P("x"), P(), (X,)),
    "psum over one of two": Program(
        lambda x: lax.psum(jnp.sin(x), "x"), TWO, P("x", "y"), P(None, "y"), (X,)
    ),
    "psum over two": Program(lambda x: lax.psum(x**2, ("y", "x")), TWO, P("x", "y"), P(), (X,)),
    "psum of what all share": Program(lambda w: lax.psum(w, ("x", "y")), TWO, P(), P(), (W,)),
    "psum of a vmapped axis too": on_x(
        lambda x: x * jax.vmap(lambda r: lax.psum(r, ("i", "x")), axis_name="i")(x),
        options=UNTYPED,
    ),
    "psum of integers": on_x(
        lambda x: lax.psum(x > 0, "x") * x.astype(jnp.int32), differentiable=False
    ),
    "psum of bfloat16": on_x(lambda x: x * lax.psum(x.astype(jnp.bfloat16), "x").astype(x.dtype)),
    "psum, untyped": Program(lambda x: lax.psum(weighted(x), "x"), ONE, P("x"), P(), (X,), UNTYPED),
    "psum in groups": on_x(
        lambda x: lax.psum(weighted(x), "x", axis_index_groups=GROUPS), options=UNTYPED
    ),
    "pmean": Program(lambda x: lax.pmean(weighted(x), ("x", "y")), TWO, P("x", "y"), P(), (X,)),
    "pmax and pmin": Program(
        lambda x: lax.pmax(x, "x") - lax.pmin(x, ("x",)),
        ONE,
        P("x"),
        P(),
        (X,),
        differentiable=False,
    ),
    "pmax in groups": on_x(
        lambda x: lax.pmax(x, "x", axis_index_groups=GROUPS),
        options=UNTYPED,
        differentiable=False,
    ),
    "all_gather": on_x(lambda x: jnp.einsum("nij->ij", lax.all_gather(weighted(x), "x") ** 2)),
    "all_gather, tiled": on_xy(
        lambda x: x * jnp.sum(lax.all_gather(weighted(x), "x", axis=1, tiled=True) ** 2)
    ),
    "all_gather over two": Program(
        lambda x: lax.all_gather(weighted(x), ("x", "y"), axis=1)[None],
        TWO,
        P("x", "y"),
        P("x", None, None, "y"),
        (X,),
    ),
    "all_gather over two, reversed and tiled": Program(
        lambda x: lax.all_gather(weighted(x), ("y", "x"), tiled=True)[None],
        TWO,
        P("x", "y"),
        P("x", None, "y"),
        (X,),
    ),
    "all_gather in groups": Program(
        lambda x: lax.all_gather(x, "x", axis_index_groups=GROUPS),
        ONE,
        P("x"),
        P("x"),
        (X,),
        UNTYPED,
    ),
    "psum_scatter": Program(
        lambda x: lax.psum_scatter(jnp.sin(x), "x", scatter_dimension=1),
        {"x": 4},
        P(None, None, "x"),
        P("x"),
        (X.reshape(3, 4, 8),),
    ),
    "psum_scatter, tiled, over two": Program(
        lambda x: lax.psum_scatter(weighted(x), ("x", "y"), tiled=True),
        TWO,
        P(None, ("x", "y")),
        P(("x", "y")),
        (X.T.reshape(8, 12)[:, :8],),
    ),
    "psum_scatter in groups": on_x(
        lambda x: lax.psum_scatter(
            x, "x", scatter_dimension=1, axis_index_groups=GROUPS, tiled=True
        ),
        options=UNTYPED,
    ),
    "all_to_all": Program(
        lambda x: lax.all_to_all(weighted(x), "x", 1, 0),
        {"x": 4},
        P("x"),
        P(None, "x"),
        (X.reshape(8, 4, 3),),
        differentiable=False,  # JAX transposes it to the wrong shape
    ),
    "all_to_all, tiled": Program(
        lambda x: lax.all_to_all(weighted(x), "x", 1, 0, tiled=True),
        TWO,
        P("x", "y"),
        P(None, ("x", "y")),
        (np.tile(X, (1, 2)),),
    ),
    "all_to_all in groups": on_x(
        lambda x: lax.all_to_all(x, "x", 1, 0, axis_index_groups=GROUPS, tiled=True),
        options=UNTYPED,
    ),
    "ppermute": on_x(lambda x: lax.ppermute(weighted(x), "x", [(i, 7 - i) for i in range(8)])),
    "ppermute, partial": on_x(lambda x: lax.ppermute(x, "x", [(0, 3), (1, 2), (6, 1)])),
    "ppermute over two": on_xy(
        lambda x: lax.ppermute(weighted(x), ("x", "y"), [(0, 3), (3, 0), (5, 7)])
    ),
    "pshuffle": on_x(lambda x: lax.pshuffle(x, "x", [1, 2, 3, 4, 5, 6, 7, 0])),
    "pswapaxes": Program(
        lambda x: lax.pswapaxes(x, "x", 1), {"x": 4}, P("x"), P("x"), (X.reshape(8, 4, 3),)
    ),
    "axis_index": on_x(weighted),
    "axis_index of two": on_xy(
        lambda x: x * lax.axis_index(("y", "x")).astype(x.dtype) * lax.axis_size(("x", "y"))
    ),
    "pcast": Program(lambda w: lax.pcast(w, "x", to="varying")[None], ONE, P(), P("x"), (W,)),
    "gradient of a replicated weight": Program(inner_gradient, ONE, (P(), P("x")), P(), (W, BATCH)),
    "gradient of a weight of one's own": Program(
        own_gradients, ONE, (P(), P("x")), P("x"), (W, BATCH)
    ),
    "gradient, untyped": Program(
        lambda w, x: lax.psum(inner_gradient(w, x), "x"),
        ONE,
        (P(), P("x")),
        P(),
        (W, BATCH),
        UNTYPED,
    ),
    "gradient through collectives": Program(
        lambda w, x: jax.grad(
            lambda w: jnp.sum(jnp.sin(lax.all_gather(lax.psum(x @ w, "x"), "y", tiled=True)))
        )(w),
        TWO,
        (P("y"), P("x", "y")),
        P("y"),
        (W, X),
    ),
    "gradient of a gradient": Program(
        lambda w, x: jax.grad(lambda w: jnp.sum(inner_gradient(w, x) ** 2))(w),
        ONE,
        (P(), P("x")),
        P(),
        (W, BATCH),
    ),
    "forward mode within": on_x(
        lambda x: jax.jvp(lambda v: jnp.sin(lax.psum(v, "x")) * v, (x,), (jnp.cos(x),))[1]
    ),
    "tensor parallel layer": Program(
        tensor_parallel, TWO, (P("x"), P(None, "y"), P("y")), P("x"), (X, W, W.T)
    ),
    "training step": Program(training_step, ONE, (P(), P("x")), (P(), P()), (W, BATCH)),
    "ring": on_x(ring_sum),
    "scan": Program(scan_with_sums, ONE, P("x"), P("x"), (X,)),
    "while that all leave at once": on_x(loop_until_all_agree, differentiable=False),
    "while that each leaves when done": on_x(loop_of_own_length, differentiable=False),
    "cond that all take": on_x(same_branch_for_all),
    "switch of one's own": on_x(own_branch),
    "remat": Program(remat, ONE, (P(), P("x")), P(), (W, BATCH)),
    "custom_jvp": on_x(lambda x: straight_through(4 * x) * lax.psum(x, "x")),
    "custom_vjp": on_x(lambda x: sum_backward(jnp.sin(x))),
    "custom_vmap": on_x(not_batched, differentiable=False),
    "linear solve": on_x(solve),
    "callback": on_x(lambda x: jax.pure_callback(lambda v: np.sin(v), x, x), differentiable=False),
    "noise": Program(noise, ONE, (P(), P("x")), P("x"), (key(3), X)),
    "noise of rbg": Program(noise, ONE, (P(), P("x")), P("x"), (key(3, impl="rbg"), X)),
    "keys split over devices": Program(
        lambda keys: jax.random.normal(keys[0], (1, 3)),
        ONE,
        P("x"),
        P("x"),
        (jax.random.split(key(0), 8),),
        differentiable=False,
    ),
    "three axes": Program(
        lambda x, w: lax.psum(x @ w, ("z", "y")),
        THREE,
        (P("x", ("y", "z")), P(("y", "z"))),
        P("x"),
        (X, W),
    ),
    "mesh axes in another order than dimensions": Program(
        lambda x: weighted(x), THREE, P(("z", "x"), "y"), P("y", ("z", "x")), (BATCH,)
    ),
    "manual over one axis of two": Program(
        constrained, TWO, (P("x"), P()), P(), (X, W), {"axis_names": {"x"}}
    ),
    "shard_map within": Program(
        inner_shard_map, TWO, (P("x"), P()), P(), (X, W), {"axis_names": {"x"}}
    ),
    "trees": Program(
        many_results,
        ONE,
        ({"a": P("x"), "b": P()},),
        {"sum": P(), "rows": (P("x"), P())},
        ({"a": X, "b": X[:1]},),
    ),
    "static argument": Program(
        lambda x, power: lax.psum(x**power, "x"),
        ONE,
        (P("x"), None),
        P(),
        (X, 3),
        differentiable=False,
    ),
    "unequal under a spec that says equal": Program(
        lambda x: jnp.sin(weighted(x)), ONE, P("x"), P(), (X,), UNTYPED, differentiable=False
    ),
}

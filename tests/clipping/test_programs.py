"""Odd programs: the clipped sum equals a plain loop of `jax.grad`, or bevel says why it cannot.

The reference runs one example at a time in the dtype of the program and clips in float64. Programs
here need not work in float64: callbacks, refs and kernels have dtypes of their own.
"""

import contextlib
import functools
import typing
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_close
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.errors import BevelError, FixLossError, MoveCollectiveError

TOLERANCE = 2e-5
B, D, K = 8, 6, 4
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def draw(*shape):
    rng = np.random.default_rng([1, *shape])
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


W, SQUARE = draw(D, K), draw(K, K)
BATCH = {"x": draw(B, D) * 2.0 ** jnp.linspace(-2.0, 1.0, B)[:, None], "y": draw(B, K)}


@dataclass(frozen=True)
class Program:
    loss: Any
    params: Any = None
    batch: Any = None
    keep_batch_dim: bool = True
    tolerance: float = TOLERANCE

    def filled(self):
        params = W if self.params is None else self.params
        return params, BATCH if self.batch is None else self.batch


def reference(loss, params, batch, clip_norm=None, keep_batch_dim=True):
    """(clip norm, clipped sum, norms); the clip norm is the median of the norms if not given."""
    grad = jax.jit(jax.grad(loss))
    gradients = []
    for i in range(jax.tree.leaves(batch)[0].shape[0]):
        cut = slice(i, i + 1) if keep_batch_dim else i
        gradient = grad(params, jax.tree.map(lambda x, cut=cut: x[cut], batch))
        gradients.append(jax.tree.map(lambda g: np.asarray(g, np.float64), gradient))
    norms = np.array([np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(t))) for t in gradients])
    clip_norm = float(np.median(norms)) or 1.0 if clip_norm is None else clip_norm
    factors = [min(1.0, clip_norm / norm) if norm else 0.0 for norm in norms]
    total = jax.tree.map(
        lambda *gs: sum(f * g for f, g in zip(factors, gs, strict=True)), *gradients
    )
    return clip_norm, total, norms


def check(program, placed=lambda tree, _: tree, wrap=lambda f: f, loss=None, **options):
    """`loss` is the program's own, written for the place where it runs."""
    params, batch = program.filled()
    keep = program.keep_batch_dim
    clip_norm, total, norms = reference(program.loss, params, batch, keep_batch_dim=keep)
    fn = bevel.clipped_grad(
        loss or program.loss,
        l2_clip_norm=clip_norm,
        keep_batch_dim=keep,
        return_grad_norms=True,
        **options,
    )
    got, aux = wrap(fn)(placed(params, "params"), placed(batch, "batch"))
    assert_close(got, total, program.tolerance)
    np.testing.assert_allclose(aux.grad_norms, norms, rtol=program.tolerance, atol=1e-6)


def squared(y, batch):
    return jnp.mean((y - batch["y"]) ** 2)


def dense(w, batch):
    return squared(jnp.tanh(batch["x"] @ w), batch)


def dot(x, w, x_dims, w_dims, **options):
    return lax.dot_general(x, w, ((x_dims, w_dims), ((), ())), **options)


# State, callbacks and kernels.


def written_ref(w, batch):
    ref = jax.new_ref(batch["x"] @ w)
    ref[...] = 2 * ref[...]
    ref[0, 0] = jnp.sum(w)
    return squared(jax.freeze(ref), batch)


def ref_of_a_parameter(w, batch):
    ref = jax.new_ref(w)
    ref[...] = jnp.tanh(ref[...])
    return squared(batch["x"] @ ref[...], batch)


def ref_in_a_loop(w, batch):
    ref = jax.new_ref(jnp.zeros((1, K)))

    def step(_, carry):
        ref[...] += jnp.tanh(batch["x"] @ w)
        return carry

    lax.fori_loop(0, 3, step, 0)
    return squared(ref[...], batch)


def _product_kernel(x_ref, w_ref, out_ref):
    out_ref[...] = jnp.dot(x_ref[...], w_ref[...])


@jax.custom_vjp
def kernel_product(x, w):
    out = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(_product_kernel, out_shape=out, interpret=True)(x, w)


kernel_product.defvjp(
    lambda x, w: (kernel_product(x, w), (x, w)),
    lambda saved, g: (kernel_product(g, saved[1].T), kernel_product(saved[0].T, g)),
)


def sine_on_host(x, vmap_method):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.sin, out, x, vmap_method=vmap_method)


def unordered_effects(w, batch):
    jax.debug.callback(lambda _: None, jnp.sum(batch["x"] @ w))
    out = jax.ShapeDtypeStruct((), jnp.float32)
    scale = io_callback(lambda v: np.float32(2 * v), out, jnp.sum(batch["x"]))
    return scale * dense(w, batch)


# Loops and branches.


def through_scan(step, start, xs=None, **options):
    return lax.scan(step, start, xs, **options)[0]


def reversed_and_unrolled(w, batch):
    xs = jnp.ones((5, K)) * batch["y"]
    step = lambda h, x: (jnp.tanh(h @ w + x[None]), h)  # noqa: E731
    return squared(through_scan(step, jnp.zeros((1, K)), xs, reverse=True, unroll=2), batch)


def parameter_in_the_carry(w, batch):
    def step(carry, _):
        w, h = carry
        return (1.1 * w, jnp.tanh(h @ w)), None

    return squared(through_scan(step, (w, batch["y"]), length=3)[1], batch)


def mixed_carry(w, batch):
    def step(mix, s):
        return mix + s[:, None] * batch["y"], None

    return squared(batch["y"] @ through_scan(step, w, jnp.ones((3, K))), batch)


def shrunk(x):
    return lax.while_loop(lambda s: jnp.sum(s**2) > 1, lambda s: s / 2, x)


def branch(condition):
    def loss(w, batch):
        left, right = lambda w: batch["x"] @ w, lambda w: 2 * jnp.tanh(batch["x"] @ w)
        return squared(lax.cond(condition(w, batch["x"]), left, right, w), batch)

    return loss


def switch_on_the_example(w, batch):
    branches = [lambda w: w, jnp.tanh, jnp.zeros_like]
    return squared(batch["x"] @ lax.switch(batch["k"][0], branches, w), batch)


def nan_in_the_other_branch(w, batch):
    x = batch["x"]
    root = lambda: jnp.sqrt(x[:, :1]) * (x @ w)  # noqa: E731
    return squared(lax.cond(x[0, 0] > 0, root, lambda: x @ w), batch)


def nested_remat(w, batch):
    def block(w, h):
        return jnp.tanh(checkpoint_name(h @ w, "product"))

    policies = jax.checkpoint_policies
    inner = jax.checkpoint(block, policy=policies.save_only_these_names("product"))
    outer = jax.checkpoint(block, policy=policies.dots_saveable)
    return squared(jax.checkpoint(lambda w, h: outer(w, inner(w, h)))(w, batch["y"]), batch)


# Rules of the user.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def activated_product(f, x, w):
    return f(x) @ w


activated_product.defvjp(
    lambda f, x, w: (activated_product(f, x, w), (x, w)),
    lambda f, saved, g: (g @ saved[1].T, 3 * saved[0].T @ g),
)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def power(w, n):
    return w**n


power.defjvp(lambda n, primals, tangents: (power(primals[0], n), 5 * tangents[0]))


@jax.custom_vjp
def deaf(y):
    return 2 * y


deaf.defvjp(lambda y: (deaf(y), y), lambda y, _: (jnp.ones_like(y),))


@jax.custom_vjp
def straight_through(x):
    return jnp.round(x)


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g,))


@jax.custom_batching.custom_vmap
def sine(x):
    return jnp.sin(x)


sine.def_vmap(lambda size, batched, x: (jnp.sin(x), batched[0]))


# Trees.


class Layer(typing.NamedTuple):
    w: Any
    b: Any
    nothing: None = None


@functools.partial(jax.tree_util.register_dataclass, data_fields=("w",), meta_fields=("name",))
@dataclass
class Named:
    w: Any
    name: str


def with_scalars_and_nothing(p, batch):
    empty = jnp.sum(p["empty"]) + jnp.sum(jnp.zeros((1, 0)) @ p["no rows"])
    return squared(p["gain"] * (batch["x"] @ p["w"]) * p["python"] + empty, batch)


# Linear algebra and other transformations.


def fixed_point(w, batch):
    x = batch["x"][0]
    return jnp.sum(
        lax.custom_root(
            lambda t: t - 0.1 * jnp.tanh(x @ w + t),
            jnp.zeros(K),
            lambda f, t: lax.fori_loop(0, 20, lambda _, s: s - f(s), t),
            lambda g, v: jnp.linalg.solve(jax.jacobian(g)(v), v),
        )
        ** 2
    )


def conjugate_gradients(w, batch):
    solution = jax.scipy.sparse.linalg.cg(lambda v: 8 * v + w.T @ (w @ v), batch["y"])[0]
    return jnp.sum(solution**2)


def centred_over_a_named_axis(w, batch):
    def one(x, scale):
        return jnp.sum((scale * (x @ w) - lax.pmean(x @ w, "copies")) ** 2)

    xs = jnp.tile(batch["x"], (3, 1))
    return jnp.mean(jax.vmap(one, axis_name="copies")(xs, jnp.arange(3.0)))


def nested_clipping(w, batch):
    inner = bevel.clipped_grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)), l2_clip_norm=1.0)
    return squared(batch["x"] @ inner(w, batch["x"]), batch)


POSITIVE_DEFINITE = 8 * jnp.eye(D)
KEYS = BATCH | {"k": jax.random.split(jax.random.key(0), B)}
CHOICES = BATCH | {"k": jnp.arange(B) % 3}
WHOLE = {"k": jnp.arange(B * D).reshape(B, D) % 5}
_twice = jax.jit(lambda x, w: jnp.tanh(x @ w))
EXTERNAL = jax.new_ref(jnp.float32(2.0))

PROGRAMS = {
    "ref, written": Program(written_ref),
    "ref of a parameter": Program(ref_of_a_parameter),
    "ref in a loop": Program(ref_in_a_loop),
    "ref from outside": Program(lambda w, b: EXTERNAL[...] * dense(w, b)),
    "pallas": Program(lambda w, b: squared(jnp.tanh(kernel_product(b["x"], w)), b)),
    "pure_callback, one by one": Program(
        lambda w, b: squared(sine_on_host(b["x"], "sequential") @ w, b)
    ),
    "pure_callback, all at once": Program(
        lambda w, b: squared(sine_on_host(b["x"], "expand_dims") @ w, b)
    ),
    "unordered effects": Program(unordered_effects),
    "while on the example": Program(lambda w, b: squared(shrunk(b["x"]) @ w, b)),
    "while on a stopped parameter": Program(
        lambda w, b: squared(shrunk(lax.stop_gradient(w[:1])) * (b["x"] @ w), b)
    ),
    "fori, steps from the example": Program(
        lambda w, b: squared(
            lax.fori_loop(0, jnp.sum(b["x"] > 0), lambda _, h: jnp.sin(h), b["x"]) @ w, b
        )
    ),
    "lax.map": Program(
        lambda w, b: jnp.mean(
            lax.map(lambda xy: jnp.sum((xy[0] @ w - xy[1]) ** 2), (b["x"], b["y"]))
        )
    ),
    "associative_scan": Program(
        lambda w, b: squared(
            b["y"] @ lax.associative_scan(jnp.matmul, jnp.tile(w[None], (4, 1, 1)) / 2)[-1], b
        ),
        SQUARE,
    ),
    "scan, reversed and unrolled": Program(reversed_and_unrolled, SQUARE),
    "scan, parameter in the carry": Program(parameter_in_the_carry, SQUARE),
    "scan, mixed carry": Program(mixed_carry, SQUARE),
    "cond on parameters": Program(branch(lambda w, x: jnp.sum(w) > 0)),
    "cond on the example": Program(branch(lambda w, x: x[0, 0] > 0)),
    "cond on both": Program(branch(lambda w, x: jnp.sum(x @ w) > 0)),
    "switch": Program(switch_on_the_example, batch=CHOICES),
    "NaN in the other branch": Program(nan_in_the_other_branch),
    "nested remat": Program(nested_remat, SQUARE),
    "a name on a parameter": Program(lambda w, b: squared(b["x"] @ checkpoint_name(w, "w"), b)),
    "custom_vjp, nondiff_argnums": Program(
        lambda w, b: squared(activated_product(jnp.tanh, b["x"], w), b)
    ),
    "custom_jvp, nondiff_argnums": Program(lambda w, b: squared(b["x"] @ power(w, 2), b)),
    "rule that ignores its cotangent": Program(lambda w, b: squared(deaf(b["x"] @ w), b)),
    "ignored cotangent of a parameter": Program(lambda w, b: squared(b["x"] @ deaf(w), b)),
    "ignored cotangent, output unused": Program(
        lambda w, b: (deaf(b["x"] @ w), jnp.sum(b["x"]))[1]
    ),
    "custom_vmap": Program(lambda w, b: squared(sine(b["x"]) @ w, b)),
    "vmap with a named axis": Program(centred_over_a_named_axis),
    "grad of a parameter": Program(
        lambda w, b: squared(b["x"] @ jax.grad(lambda w: jnp.sum(jnp.sin(b["x"] @ w)))(w), b)
    ),
    "jvp inside": Program(
        lambda w, b: squared(jax.jvp(lambda w: jnp.tanh(b["x"] @ w), (w,), (w,))[1], b)
    ),
    "hessian inside": Program(
        lambda w, b: jnp.sum(jax.hessian(lambda x: jnp.sum(jnp.tanh(x @ w)))(b["x"][0]) ** 2)
    ),
    "clipped_grad inside": Program(nested_clipping),
    "stop_gradient on one use": Program(
        lambda w, b: squared(lax.stop_gradient(b["x"] @ w) * jnp.tanh(b["x"] @ w), b)
    ),
    "the parameter is the loss": Program(lambda w, b: w, jnp.float32(2.0)),
    "the parameter is a Python float": Program(lambda w, b: w * jnp.sum(b["x"]), 2.0),
    "no example in the loss": Program(lambda w, b: jnp.sum(w**2)),
    "no parameter in the loss": Program(lambda w, b: jnp.sum(b["x"])),
    "constant loss": Program(lambda w, b: 0.0),
    "one array in two places": Program(
        lambda p, b: squared(b["x"] @ p["a"] + jnp.tanh(b["x"]) @ p["c"]["a"], b),
        {"a": W, "c": {"a": W}},
    ),
    "whole numbers in the batch": Program(lambda w, b: squared(w[b["k"]], b), batch=CHOICES),
    "keys in the batch": Program(
        lambda w, b: squared((b["x"] + jax.random.normal(b["k"][0], (1, D))) @ w, b), batch=KEYS
    ),
    "keys in the batch, no batch dimension": Program(
        lambda w, b: squared((b["x"] + jax.random.normal(b["k"], (D,))) @ w, b),
        batch=KEYS,
        keep_batch_dim=False,
    ),
    "scalars, empty leaves, Python floats": Program(
        with_scalars_and_nothing,
        {
            "w": W,
            "gain": jnp.float32(1.5),
            "python": 0.5,
            "empty": jnp.zeros((0, 4)),
            "no rows": jnp.zeros((0, K)),
        },
    ),
    "many leaves": Program(
        lambda p, b: squared(sum(b["x"] @ w for w in p), b), [W * (i / 20) for i in range(20)]
    ),
    "weakly typed batch": Program(
        lambda w, b: jnp.sum(jnp.tanh(b * w[None])).astype(jnp.float32),
        jnp.ones(3, jnp.bfloat16),
        jnp.full((B, 3), 2.0),
        tolerance=1e-2,
    ),
    "named tuple and None": Program(
        lambda p, b: squared(b["x"] @ p.w + p.b[None], b),
        Layer(W, draw(K)),
        BATCH | {"nothing": None},
    ),
    "dataclass": Program(
        lambda p, b: squared(b["x"] @ p.w * len(p.name), b), Named(W, "two letters")
    ),
    "the same parameter on both sides": Program(lambda w, b: squared(b["y"] @ (w.T @ w), b)),
    "jit called twice": Program(lambda w, b: squared(_twice(_twice(b["y"], w), w), b), SQUARE),
    "reshape with permuted dimensions": Program(
        lambda w, b: squared(b["x"] @ lax.reshape(w, (D, K), (1, 0)), b), draw(K, D)
    ),
    "several contracted dimensions": Program(
        lambda w, b: jnp.sum(jnp.einsum("bij,jki->bk", b["x"].reshape(-1, 2, 3), w) ** 2),
        draw(3, 5, 2),
    ),
    "several rows": Program(
        lambda w, b: jnp.sum(jnp.tanh(dot(w, b["x"].reshape(-1, 2, 3), (1,), (2,)))),
        draw(40, 3),
    ),
    "vectors, no batch dimension": Program(
        lambda w, b: jnp.sin(jnp.dot(b["x"], w)), draw(D), keep_batch_dim=False
    ),
    "whole numbers in the product": Program(
        lambda w, b: jnp.mean(
            jnp.tanh(dot(b["k"], w, (1,), (0,), preferred_element_type=jnp.float32))
        ),
        batch=WHOLE,
    ),
    "through complex numbers": Program(
        lambda w, b: squared(jnp.real(b["x"].astype(jnp.complex64) @ w.astype(jnp.complex64)), b)
    ),
    "scatter": Program(
        lambda w, b: squared(jnp.zeros((1, K)).at[:, b["k"][0]].add((b["x"] @ w)[:, 0]), b),
        batch=CHOICES,
    ),
    "fft": Program(lambda w, b: jnp.sum(jnp.abs(jnp.fft.rfft(b["x"] * w[None])) ** 2), draw(D)),
    "cholesky": Program(
        lambda w, b: jnp.sum(jnp.linalg.cholesky(8 * jnp.eye(K) + w.T @ (b["x"].T @ b["x"]) @ w))
    ),
    "solve": Program(
        lambda w, b: jnp.sum(
            jnp.linalg.solve(POSITIVE_DEFINITE + jnp.outer(b["x"], b["x"]), w) ** 2
        ),
        keep_batch_dim=False,
    ),
    "svd": Program(lambda w, b: jnp.sum(jnp.linalg.svd(w * (1 + b["x"].T ** 2), compute_uv=False))),
    "custom_root": Program(fixed_point),
    "custom_linear_solve": Program(conjugate_gradients, SQUARE, keep_batch_dim=False),
    "convolution, odd sizes": Program(
        lambda w, b: jnp.sum(
            jnp.tanh(
                lax.conv_general_dilated(
                    b["x"][:, None], w, (2,), [(2, 1)], lhs_dilation=(2,), rhs_dilation=(2,)
                )
            )
        ),
        draw(4, 1, 3),
    ),
    "double where": Program(
        lambda w, b: jnp.sum(
            jnp.where(b["x"] > 0, jnp.sqrt(jnp.where(b["x"] > 0, b["x"], 1.0)), 0.0) @ w
        )
    ),
}


def alternately(table):
    """Half of the programs eagerly, half under jit: each path meets every kind."""
    return [(name, ("eager", "jit")[i % 2]) for i, name in enumerate(table)]


@pytest.mark.parametrize("name, how", alternately(PROGRAMS))
def test_equals_a_loop_of_grads(name, how):
    check(PROGRAMS[name], wrap=jax.jit if how == "jit" else lambda f: f)


# What cannot be done per example is refused, in words.

IMPOSSIBLE = {
    "while on a parameter": lambda w, b: squared(b["x"] @ shrunk(w), b),
    "callback on a parameter": lambda w, b: squared(b["x"] @ sine_on_host(w, "sequential"), b),
    "callback without vmap_method": lambda w, b: squared(sine_on_host(b["x"], None) @ w, b),
    "primitive without a batching rule": lambda w, b: squared(
        jax.custom_derivatives.linear_call(lambda _, y: 2 * y, lambda _, g: 2 * g, (), b["x"] @ w),
        b,
    ),
    "ref from outside, written": lambda w, b: (write_outside(b["x"]), dense(w, b))[1],
    "ordered effect": lambda w, b: (
        jax.debug.callback(lambda _: None, jnp.sum(b["x"]), ordered=True),
        dense(w, b),
    )[1],
    "no scalar": lambda w, b: b["x"] @ w,
    "aux without has_aux": lambda w, b: (dense(w, b), 1),
    "nothing": lambda w, b: None,
    "whole number": lambda w, b: 1,
}


def write_outside(x):
    EXTERNAL[...] = jnp.sum(x)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_refused(name):
    with pytest.raises(FixLossError):
        bevel.clipped_grad(IMPOSSIBLE[name], l2_clip_norm=1.0)(W, BATCH)


# Calls inside other transformations.


def scaled(s):
    return lambda w, b: squared(jnp.tanh(s * (b["x"] @ w)), b)


SCALES = jnp.array([0.5, 2.0])
OUTER = {
    "jit": lambda f: [jax.jit(f)(s) for s in SCALES],
    "vmap": lambda f: list(jax.vmap(f)(SCALES)),
    "scan": lambda f: list(lax.scan(lambda _, s: (_, f(s)), 0, SCALES)[1]),
    "vmap in jit": lambda f: list(jax.jit(jax.vmap(f))(SCALES)),
}


@pytest.mark.parametrize("name", OUTER)
@pytest.mark.parametrize("options", [{}, {"microbatch_size": 2}], ids=["whole", "microbatches"])
def test_closes_over_an_outer_tracer(name, options):
    got = OUTER[name](
        lambda s: bevel.clipped_grad(scaled(s), l2_clip_norm=1.0, **options)(W, BATCH)
    )
    expected = [reference(scaled(float(s)), W, BATCH, clip_norm=1.0)[1] for s in SCALES]
    assert_close(got, expected, TOLERANCE)


def test_vmap_over_parameters_batches_and_masks():
    masks = jnp.stack([jnp.arange(B) < 2, jnp.arange(B) >= 3])
    params, batches = jnp.stack([W, 2 * W]), jax.tree.map(lambda x: jnp.stack([x, -x]), BATCH)
    fn = bevel.clipped_grad(dense, l2_clip_norm=1.0, microbatch_size=2)
    got = jax.vmap(lambda p, b, m: fn(p, b, is_padding_example=m))(params, batches, masks)
    for i in range(2):
        kept = jax.tree.map(lambda x, i=i: x[i][~masks[i]], batches)
        assert_close(got[i], reference(dense, params[i], kept, clip_norm=1.0)[1], TOLERANCE)


def differentiable_sum(loss, params, clip_norm):
    """The clipped sum, written so that JAX can differentiate it."""
    total = jax.tree.map(jnp.zeros_like, params)
    for i in range(B):
        g = jax.grad(loss)(params, jax.tree.map(lambda x, i=i: x[i : i + 1], BATCH))
        norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(g)))
        factor = jnp.minimum(1.0, clip_norm / norm)
        total = jax.tree.map(lambda t, x, f=factor: t + f * x, total, g)
    return total


def rounded(s):
    return lambda w, b: squared(jnp.tanh(straight_through(3 * s * b["x"]) @ w), b)


def partly_dead(s):
    def loss(p, b):
        dead = jnp.sum(jax.nn.relu(-100 - s * p["dead"] ** 2))
        return squared(jnp.tanh(s * (b["x"] @ p["w"])) + dead, b)

    return loss


HYPER = {
    "scale": (scaled, W),
    "behind a rule of the user": (rounded, W),
    "with a parameter whose gradient is zero": (partly_dead, {"w": W, "dead": W}),
}


@pytest.mark.parametrize("name", HYPER)
def test_outer_gradient(name):
    make_loss, params = HYPER[name]

    def outer(s, clipped_sum):
        total = clipped_sum(make_loss(s), params)
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(total))

    def by_bevel(loss, params):
        return bevel.clipped_grad(loss, l2_clip_norm=1.0)(params, BATCH)

    gradient = jax.jit(jax.grad(outer), static_argnums=1)
    expected = gradient(1.3, lambda loss, params: differentiable_sum(loss, params, 1.0))
    np.testing.assert_allclose(gradient(1.3, by_bevel), expected, rtol=1e-3)


def test_argnums_keep_their_order():
    def loss(a, b, batch):
        return squared(2 * batch["x"] @ a, batch) + jnp.sum(jnp.sin(batch["x"] @ b))

    other = draw(K, D).T
    fn = bevel.clipped_grad(loss, argnums=(1, 0), batch_argnums=2, l2_clip_norm=1e6)
    expected = [jax.grad(loss, i)(W, other, jax.tree.map(lambda x: x[:1], BATCH)) for i in (1, 0)]
    assert_close(fn(W, other, jax.tree.map(lambda x: x[:1], BATCH)), tuple(expected), TOLERANCE)


def test_a_collective_over_an_outer_vmap_is_refused():
    def centred(w, b):
        return squared((b["x"] - lax.pmean(b["x"], "clients")) @ w, b)

    fn = bevel.clipped_grad(centred, l2_clip_norm=1.0)
    clients = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), BATCH)
    with pytest.raises(MoveCollectiveError):
        jax.vmap(lambda b: fn(W, b), axis_name="clients")(clients)


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

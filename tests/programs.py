"""Odd JAX programs: a row here joins every test over `PROGRAMS`."""

import functools
import typing
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from compare import assert_close
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import linear_call
from jax.experimental import pallas as pl
from jax.sharding import AxisType

import bevel
from bevel.clipping.coupled_examples import quiet

TOLERANCE = 3e-4  # slack included
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
    quiet(loss or program.loss)  # some of them couple examples
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
    return dense(w, batch)


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


def doubled_at_depth(w, batch):
    @jax.checkpoint
    def step(h, _):
        double = functools.partial(linear_call, lambda _, y: 2 * y, lambda _, g: 2 * g, ())
        return lax.cond(jnp.sum(h) > 0, lambda h: jnp.tanh(double(h @ w)), jnp.sin, h), None

    return squared(lax.scan(step, batch["y"], length=3)[0], batch)


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
    "pure_callback without a method": Program(
        lambda w, b: squared(sine_on_host(b["x"], None) @ w, b)
    ),
    "no batching rule": Program(
        lambda w, b: squared(linear_call(lambda _, y: 2 * y, lambda _, g: 2 * g, (), b["x"] @ w), b)
    ),
    "no batching rule, at depth": Program(doubled_at_depth, SQUARE),
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

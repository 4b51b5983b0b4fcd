"""The low-memory mode: two backward passes give the same as one that holds its values."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from clipping.uses.test_find import TABLE, TOKENS
from clipping.uses.test_taps import QUICK, X, decided, draw, squared, traced
from compare import assert_close
from earlier_compilers import COPIES
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.accumulate.low_memory import ReadNorm, can_recompute
from bevel.clipping.plan import tapped_parameter
from bevel.clipping.uses.taps import HoldValues, differentiate

SIZE, CLIP_NORM = 8, 0.4
PARAMS = {"b": draw(6), "layers": {"down": draw(3, 8, 6) / 4, "up": draw(3, 6, 8) / 4}}
BATCH = draw(SIZE, 4, 6) * 2.0 ** jnp.linspace(-3.0, 2.0, SIZE)[:, None, None]


def block(h, w):
    return h + jnp.tanh(h @ w["up"]) @ w["down"], None


def loss(p, x):
    """Layers in a remat, and a parameter that is materialised."""
    return squared(lax.scan(jax.checkpoint(block), x + p["b"][None, None], p["layers"])[0])


def clipped(memory, fun=loss, norms="gram", **options):
    """Compiles quickly."""
    options = {"l2_clip_norm": CLIP_NORM, "return_grad_norms": True} | options
    fn = bevel.clipped_grad(fun, memory=memory, norms=norms, **options)
    return jax.jit(fn, compiler_options=QUICK)


def assert_same(one, other):
    (one, one_aux), (other, other_aux) = one, other
    assert_close(jax.tree.map(np.asarray, one), jax.tree.map(np.asarray, other), 3e-5)
    np.testing.assert_allclose(one_aux.grad_norms, other_aux.grad_norms, rtol=1e-5)


@pytest.mark.parametrize("norms", ["gram", "product"])
def test_both_modes_equal_the_oracle(norms):
    expected = oracle.clipped_sum(loss, PARAMS, BATCH, clip_norm=CLIP_NORM)
    assert np.min(expected.norms) < CLIP_NORM < np.max(expected.norms)
    runs = [clipped(memory, norms=norms)(PARAMS, BATCH) for memory in ("auto", "bookkeeping")]
    assert_same(*runs)
    assert_close(runs[0][0], expected.grad, 1e-4)
    np.testing.assert_allclose(runs[0][1].grad_norms, expected.norms, rtol=2e-5)


NOT_FINITE = BATCH.at[2, 1, 3].set(jnp.nan).at[5].set(jnp.inf)
# name: (options, options of the oracle, batch, padding)
CALLS = {
    "a clip norm for each group": (
        {"l2_clip_norm": {"b": 0.02, "layers": {"down": 0.01, "up": 9.0}}, "normalize_by": 2.0},
        {"clip_norm": {"b": 0.02, "layers": {"down": 0.01, "up": 9.0}}, "normalize_by": 2.0},
        BATCH,
        None,
    ),
    "padding that is not finite": (
        {"nan_safe": False, "rescale_to_unit_norm": True},
        {"clip_norm": CLIP_NORM, "rescale": True},
        NOT_FINITE,
        np.isin(np.arange(SIZE), [0, 2, 5]),
    ),
    "microbatches, padding, examples that are not finite": (
        {"microbatch_size": 2},
        {"clip_norm": CLIP_NORM},
        NOT_FINITE,
        np.arange(SIZE) % 4 == 3,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_options_hold_in_both_passes(name):
    options, same, batch, padding = CALLS[name]
    grad, _ = clipped("low", **options)(PARAMS, batch, is_padding_example=padding)
    expected = oracle.clipped_sum(loss, PARAMS, batch, padding=padding, **same)
    assert_close(grad, expected.grad, 1e-4)


def test_one_row_in_a_remat():
    def one_row(p, x):
        return squared(lax.scan(jax.checkpoint(block), x, p)[0])

    params, batch = PARAMS["layers"], BATCH[:, 0]
    expected = oracle.clipped_sum(one_row, params, batch, clip_norm=CLIP_NORM)
    grad, aux = clipped("auto", one_row, "outer")(params, batch)
    assert_close(grad, expected.grad, 1e-4)
    np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=2e-5)


def test_lookups_and_convolutions_in_a_remat():
    def both(p, k):
        h = jax.checkpoint(lambda w, k: w[k])(p["table"], k)
        return squared(
            jax.checkpoint(lambda w, h: lax.conv_general_dilated(h, w, (1,), "SAME"))(
                p["kernel"], h
            )
        )

    params = {"kernel": draw(4, 3, 3), "table": TABLE}
    tokens = jnp.concatenate([TOKENS[:, 0], TOKENS[:, 0, ::-1]])
    assert_same(*(clipped(m, both)(params, tokens) for m in ("low", "bookkeeping")))


def test_the_second_pass_draws_what_the_first_drew():
    def noisy(p, x, key):
        def layer(h, w):
            h, key = h
            key, own = jax.random.split(key)
            mask = jax.random.bernoulli(own, 0.5, h.shape).astype(h.dtype)
            return (jnp.tanh((h * mask) @ w), key), None

        return squared(lax.scan(jax.checkpoint(layer), (x, key), p)[0][0])

    layers, key = draw(3, 6, 6) / 2, jax.random.key(1)
    runs = [clipped(m, noisy, prng_argnum=2)(layers, BATCH, key) for m in ("low", "bookkeeping")]
    assert_same(*runs)


def test_an_auto_mesh_changes_nothing():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def placed(x, *spec):
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    layers = {
        "down": placed(PARAMS["layers"]["down"], None, "model"),
        "up": placed(PARAMS["layers"]["up"], None, None, "model"),
    }
    expected = oracle.clipped_sum(loss, PARAMS, BATCH, clip_norm=CLIP_NORM)
    params = {"b": placed(PARAMS["b"]), "layers": layers}
    grad, aux = clipped("low")(params, placed(BATCH, "data"))
    assert_close(jax.tree.map(np.asarray, grad), expected.grad, 1e-4)
    np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=2e-5)


def test_modes_agree_inside_shard_map():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    specs = {"in_specs": (P(), P("data")), "out_specs": (P(), P("data"))}
    options = {"l2_clip_norm": CLIP_NORM, "return_grad_norms": True, "norms": "product"}

    def run(memory):
        fn = bevel.clipped_grad(loss, reduce_axes="data", memory=memory, **options)
        step = jax.shard_map(lambda p, x: fn(p, x), mesh=mesh, check_vma=True, **specs)
        return jax.jit(step, compiler_options=QUICK)(PARAMS, jnp.concatenate([BATCH, -BATCH]))

    assert_same(run("low"), run("bookkeeping"))


def chosen_tap(params, batch, fun, way="gram"):
    program, flat = traced(params, batch, fun)
    (chosen,) = decided(program, flat, way)
    return program, flat, tapped_parameter(chosen, flat[0])


SQUARE = draw(6, 6) / 2


@pytest.mark.parametrize(
    "params, fun, again",
    [
        (SQUARE, lambda w, x: squared(x @ w), True),
        (draw(2, 3, 6, 6), lambda w, x: squared(nested(w, x)), True),
        (SQUARE, lambda w, x: squared(lax.fori_loop(0, 2, lambda _, h: h @ w, x)), False),
        (SQUARE, lambda w, x: squared(x @ w @ w), False),
        (SQUARE, lambda w, x: squared(x @ w[:, :3]) + squared(x @ w[:, 3:]), True),
        (SQUARE, lambda w, x: squared(lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x)), False),
    ],
)
def test_what_can_be_done_again(params, fun, again):
    assert can_recompute(chosen_tap(params, X, fun)[2]) == again


def nested(w, x):
    step = lambda h, v: (jnp.tanh(h @ v), None)  # noqa: E731
    return lax.scan(lambda h, v: (lax.scan(step, h, v)[0], None), x, w)[0]


@pytest.mark.parametrize("way", ["outer", "gram", "product"])
def test_the_backward_pass_hands_on_two_numbers_for_each_step(way):
    layers = draw(2, 3, 6, 6) / 2
    program, flat, tap = chosen_tap(layers, X, lambda w, x: squared(nested(w, x)), way)
    (use,) = tap.uses
    _, _, (reading,) = differentiate(program, [(use, ReadNorm(way))], [], [*flat, X[0]])
    assert list(reading.h) == [] and reading.g.shape == (2, 3, 2)
    exact = jax.grad(lambda w: squared(nested(w, X[0])))(layers)
    norms = jnp.linalg.norm(exact, axis=(2, 3))
    np.testing.assert_allclose(reading.g[..., 0], norms, rtol=2e-5)
    assert np.all(reading.g[..., 1] > norms)


def test_the_bound_leaves_room_for_values_that_are_rounded_differently_the_second_time():
    weight, x = draw(6, 6).astype(jnp.bfloat16), X[0].astype(jnp.bfloat16)
    fun = lambda w, x: squared((x @ w).astype(jnp.float32))  # noqa: E731
    program, flat, tap = chosen_tap(weight, x[None], fun, "gram")
    (use,) = tap.uses

    def read(reader):
        (reading,) = differentiate(program, [(use, reader)], [], [*flat, x])[2]
        return reading

    held = read(HoldValues())
    gradient = use.rule.gradient(use.eqn, use.operand, (), [h[None] for h in held.h], held.g[None])
    bound = gradient.norm("gram", True).norm.upper[0]
    assert read(ReadNorm("gram")).g[1] >= bound * (1 + 2.0**-8)  # a rounding to bfloat16


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_contribution_exceeds_its_clip_norm(dtype):
    def cast(p, x):
        layers = jax.tree.map(lambda w: w.astype(dtype), p)
        h = lax.scan(jax.checkpoint(block), x.astype(dtype), layers)[0]
        return squared(h.astype(jnp.float32))

    clip_norm = 1e-4
    fn = clipped("low", cast, l2_clip_norm=clip_norm)
    for x in BATCH:
        grad, _ = fn(PARAMS["layers"], x[None])
        leaves = [np.asarray(g, np.float64) for g in jax.tree.leaves(grad)]
        size = np.sqrt(sum((g**2).sum() for g in leaves))
        assert clip_norm * 0.95 <= size <= clip_norm


def test_a_remat_takes_the_memory_that_it_takes_without_clipping():
    def deep(w, x):
        return squared(lax.scan(jax.checkpoint(lambda h, v: (jnp.tanh(h @ v), None)), x, w)[0])

    arguments = draw(16, 64, 64) / 8, draw(8, 128, 64)

    def memory(fun):
        return jax.jit(fun).lower(*arguments).compile().memory_analysis().temp_size_in_bytes

    plain = memory(jax.grad(deep))
    low, held = (
        memory(bevel.clipped_grad(deep, l2_clip_norm=1.0, memory=m)) for m in ("low", "bookkeeping")
    )
    assert held > 1.2 * plain
    assert low <= 1.1 * COPIES * plain, f"{low / plain:.2f} times"

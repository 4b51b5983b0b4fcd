"""Gaussian noise is the same on every mesh, repeatable, and has the right law."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from compare import FULL, cost
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import (
    AUTO,
    EXPLICIT,
    GRADIENT,
    LAYOUTS,
    SPLIT_8,
    STDDEV_OF_BITS,
    WHOLE,
    WITHOUT_COMMUNICATION,
    Decaying,
    Layout,
    bits_as_noise,
    decaying,
    threefry_key,
)

from bevel.errors import FixArgumentsError
from bevel.noise_addition import (
    gaussian_noise,
    gaussian_privatizer,
    matrix_factorization_privatizer,
)

STDDEV = 2.0
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def gaussian(**options):
    return gaussian_privatizer(stddev=STDDEV, prng_key=threefry_key(5), **options)


def correlated(matrix, **options):
    key = threefry_key(5)
    return matrix_factorization_privatizer(matrix, stddev=STDDEV, prng_key=key, **options)


def dense(**options):
    return correlated(decaying(8), **options)


def streaming(**options):
    return correlated(Decaying, **options)


def steps(privatizer, count):
    """A function of the gradient that returns the noised gradient of the last step."""

    def run(grads):
        state = privatizer.init(grads)
        for _ in range(count):
            noised, state = privatizer.update(grads, state)
        return noised

    return run


NAMED = {layout.name: layout for layout in LAYOUTS}
THREE = [NAMED[name] for name in ("auto-42", "explicit-42", "manual-42")]
CASES = [("threefry2x32", layout) for layout in LAYOUTS]
CASES += [("chacha20", layout) for layout in (LAYOUTS if FULL else THREE)]


def showing_bits(matrix, generator="threefry2x32", specs=None):
    key = threefry_key(5) if generator == "threefry2x32" else 5
    options = {"stddev": STDDEV_OF_BITS, "prng_key": key, "specs": specs}
    if matrix is None:
        return gaussian_privatizer(**options)
    return matrix_factorization_privatizer(matrix, **options)


def check_layout(layout, tree, count, expected, *mechanism):
    """Compares the result with one device, and looks for collectives."""
    on_mesh = layout.place(tree)
    specs = {name: layout.specs[name] for name in tree}
    program = layout.compiled(steps(showing_bits(*mechanism, specs=specs), count), on_mesh)
    for name, x in program(on_mesh).items():
        np.testing.assert_array_equal(x, expected[name], err_msg=name)
    found = [kind for kind in COLLECTIVES if f" {kind}" in program.as_text()]
    assert not found or layout not in WITHOUT_COMMUNICATION


@functools.cache
def bits_on_one_device(generator):
    return jax.jit(steps(showing_bits(None, generator), 1))(GRADIENT)


@pytest.mark.parametrize(
    "generator, layout", CASES, ids=[f"{generator}-{layout.name}" for generator, layout in CASES]
)
def test_bits_are_equal_on_every_mesh_and_nothing_is_communicated(generator, layout, monkeypatch):
    monkeypatch.setattr(gaussian_noise, "normal_from_bits", bits_as_noise)
    expected = bits_on_one_device(generator)
    assert len(np.unique(expected["w"])) > 1000
    check_layout(layout, GRADIENT, 1, expected, None, generator)


ODD = {"odd": GRADIENT["odd"]}
MATRICES = {"dense": decaying(8), "streaming": Decaying}


@functools.cache
def on_one_device(name):
    return jax.jit(steps(showing_bits(MATRICES[name]), 3))(ODD)


@pytest.mark.parametrize("layout", THREE, ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", MATRICES)
def test_correlated_noise_is_the_same_on_every_mesh(name, layout, monkeypatch):
    monkeypatch.setattr(gaussian_noise, "normal_from_bits", bits_as_noise)
    check_layout(layout, ODD, 3, on_one_device(name), MATRICES[name])


def test_normals_differ_by_rounding_only():
    # Quantiles may round differently in vectors of another length.
    layout, update = NAMED["auto-42"], jax.jit(gaussian().update)
    one, other = (update(g, gaussian().init(g))[0] for g in (ODD, layout.place(ODD)))
    np.testing.assert_allclose(one["odd"], other["odd"], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("make, kind", [(gaussian, EXPLICIT), (streaming, AUTO)])
def test_work_falls_with_the_mesh(make, kind):
    def flops(devices):
        mesh = jax.make_mesh((devices,), ("data",), axis_types=(kind,))
        # Large, because the pieces of a small leaf are as large as those of its shards.
        g = jax.device_put(np.ones((1024, 1024), np.float32), NamedSharding(mesh, P("data")))
        return cost(make().update, g, make().init(g))["flops"]

    assert flops(8) < flops(1) / 6


def test_replicas_get_identical_noise():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,))
    g = jax.device_put(np.ones((4, 12), np.float32), NamedSharding(mesh, P()))
    noised, _ = gaussian().update(g, gaussian().init(g))
    copies = [np.asarray(shard.data) for shard in noised.addressable_shards]
    assert len(copies) == 8
    for copy in copies:
        np.testing.assert_array_equal(copy, copies[0])


# Steps.

G = np.ones((8, 12), np.float32)


def test_the_noise_of_a_step_can_be_drawn_again():
    privatizer = gaussian()
    state, rows = privatizer.init(G), []
    for _ in range(3):
        noised, state = privatizer.update(G, state)
        rows.append(noised)
    again = gaussian()
    for k in (2, 0, 1):
        noised, _ = again.update(G, again.init(G)._replace(step=jnp.uint32(k)))
        np.testing.assert_array_equal(noised, rows[k])


@pytest.mark.parametrize("make", [dense, streaming])
def test_correlated_noise_continues_from_a_saved_state_or_by_replay(make):
    privatizer = make()
    state, states, rows = privatizer.init(G), [], []
    for _ in range(3):
        states.append(jax.tree.map(np.asarray, state))  # as a checkpoint would have it
        noised, state = privatizer.update(G, state)
        rows.append(noised)
    for start in (0, 1, 2):
        state = states[start]
        for k in range(start, 3):
            noised, state = privatizer.update(G, state)
            np.testing.assert_array_equal(noised, rows[k])


def test_the_last_step_that_can_be_counted_has_noise():
    """Correlated noise is added in loops, whose counters start at the step."""
    tree = {name: np.ones((3, 4), np.float32) for name in "abc"}
    for privatizer in (streaming(), gaussian()):
        state = privatizer.init(tree)._replace(step=jnp.uint32(2**32 - 1))
        noised, _ = privatizer.update(tree, state)
        for x in noised.values():
            assert np.all(np.abs(x - 1) > 0)


def test_a_run_continues_on_another_mesh():
    privatizer = streaming()
    _, state = privatizer.update(G, privatizer.init(G))
    expected, _ = privatizer.update(G, state)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,))
    on_mesh = jax.device_put(G, NamedSharding(mesh, P("data")))
    found, _ = privatizer.update(on_mesh, jax.tree.map(np.asarray, state))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


def test_different_settings_do_not_share_a_program():
    g = np.zeros_like(G)
    one, two = (
        gaussian_privatizer(stddev=s, prng_key=threefry_key(5)).update(g, gaussian().init(g))[0]
        for s in (1, 2)
    )
    np.testing.assert_allclose(two, 2 * one, rtol=1e-6)
    other = gaussian_privatizer(stddev=1, prng_key=threefry_key(6)).update(g, gaussian().init(g))[0]
    assert not np.any(other == one)


# The law.

LARGE = {"a": np.zeros((100, 1000), np.float32), "b": np.zeros((100, 1000), np.float32)}


@pytest.fixture(scope="module")
def many():
    """Noise of three steps and two leaves, 1e5 numbers each."""
    privatizer = gaussian_privatizer(stddev=STDDEV, prng_key=threefry_key(77))
    update, state, rows = jax.jit(privatizer.update), privatizer.init(LARGE), []
    for _ in range(3):
        noised, state = update(LARGE, state)
        rows += [np.asarray(noised[name], np.float64).ravel() for name in LARGE]
    return np.stack(rows)


def test_the_scale_is_right(many):
    for row in many:
        assert scipy.stats.kstest(row / STDDEV, "norm").pvalue > 1e-3
        for wrong in (0.67, 1.5):
            assert scipy.stats.kstest(wrong * row / STDDEV, "norm").pvalue < 1e-9


def test_steps_leaves_and_shards_are_independent(many):
    shards = many.reshape(48, -1)  # eighths of each leaf at each step
    for rows in (many, many[:, ::-1], shards):
        for power in (1, 2):  # also of squares: equal size with another sign would show
            correlations = np.corrcoef(np.abs(rows) ** power if power == 2 else rows)
            np.fill_diagonal(correlations, 0.0)
            assert np.max(np.abs(correlations)) < 5 / np.sqrt(rows.shape[1])
    lagged = [np.mean(many[:, k:] * many[:, : many.shape[1] - k]) for k in (1, 2, 4, 8, 16, 1000)]
    assert np.max(np.abs(lagged)) < 5 * STDDEV**2 / np.sqrt(many.size)
    assert len(np.unique(many)) > 0.98 * many.size


# Precision and shape.


NARROW_DTYPES = ("bfloat16", "float16") if FULL else ("bfloat16",)
NARROW = {dtype: np.full(64, 1e-3, np.float32).astype(dtype) for dtype in NARROW_DTYPES}


def test_noise_is_added_in_float32():
    privatizer = gaussian_privatizer(stddev=1e-4, prng_key=threefry_key(5))
    noised, _ = privatizer.update(NARROW, privatizer.init(NARROW))
    wide = jax.tree.map(lambda x: x.astype(np.float32), NARROW)
    exact, _ = privatizer.update(wide, privatizer.init(wide))
    asked = gaussian_privatizer(stddev=1e-4, prng_key=threefry_key(5), dtype=jnp.bfloat16)
    rounded, _ = asked.update(NARROW, asked.init(NARROW))
    for name in NARROW:
        assert noised[name].dtype == jnp.float32
        np.testing.assert_array_equal(noised[name], exact[name])
        np.testing.assert_array_equal(rounded[name], exact[name].astype(jnp.bfloat16))


def test_float64_gradients_get_float64_noise():
    with jax.enable_x64(True):
        g = np.zeros(64)
        privatizer = gaussian()
        noised, _ = privatizer.update(g, privatizer.init(g))
        assert noised.dtype == np.float64
        assert np.any(np.asarray(noised) != np.asarray(noised, np.float32))
        narrow, _ = privatizer.update(g.astype(np.float32), privatizer.init(g))
        np.testing.assert_allclose(noised, narrow, rtol=1e-6)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_a_mesh_does_not_narrow_float64_noise(kind):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    with jax.enable_x64(True):
        g = np.zeros((8, 16))
        split = jax.device_put(g, jax.NamedSharding(mesh, P("data", "model")))
        update = jax.jit(gaussian().update)
        one, other = (update(x, gaussian().init(x))[0] for x in (g, split))
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_the_gradient_is_in_the_result():
    g = np.linspace(-3, 3, G.size, dtype=np.float32).reshape(G.shape)
    privatizer = gaussian()
    noised, zero = (privatizer.update(x, privatizer.init(g))[0] for x in (g, np.zeros_like(g)))
    np.testing.assert_allclose(noised - zero, g, atol=1e-6)
    without = gaussian_privatizer(stddev=0.0, prng_key=threefry_key(5))
    np.testing.assert_array_equal(without.update(g, without.init(g))[0], g)


def test_empty_trees_and_leaves():
    privatizer = streaming()
    assert privatizer.update({}, privatizer.init({}))[0] == {}
    empty = np.zeros((0, 3), np.float32)
    noised, _ = privatizer.update(empty, privatizer.init(empty))
    assert noised.shape == (0, 3)


@pytest.mark.parametrize("kind, manual", [(AUTO, False), (EXPLICIT, False), (AUTO, True)])
@pytest.mark.parametrize("make", [gaussian, streaming])
def test_empty_leaves_on_meshes(make, kind, manual):
    specs = {"b": P("data"), "empty": P(None, "model")}
    layout = Layout("", (4, 2), (kind,) * 2, specs, manual)
    tree = {"b": np.ones(24, np.float32), "empty": np.zeros((0, 8), np.float32)}
    run = steps(make(specs=specs), 2)
    on_mesh = layout.place(tree)
    noised = layout.compiled(run, on_mesh)(on_mesh)
    assert noised["empty"].shape == (0, 8)
    np.testing.assert_allclose(noised["b"], run(tree)["b"], rtol=1e-5)


def test_integer_gradients_are_refused():
    g = {"w": np.zeros(3, np.int32)}
    with pytest.raises(FixArgumentsError, match=r"\['w'\] has dtype int32.*discrete_gaussian"):
        gaussian().update(g, gaussian().init({"w": np.zeros(3, np.float32)}))


def test_a_state_of_another_shape_is_refused():
    privatizer = streaming()
    state = privatizer.init(np.zeros((3, 4), np.float32))
    with pytest.raises(FixArgumentsError, match=r"float32\[1, 3, 4\].*needs.*float32\[1, 4, 3\]"):
        privatizer.update(np.zeros((4, 3), np.float32), state)
    with pytest.raises(FixArgumentsError, match="another privatizer"):
        gaussian().update(np.zeros((3, 4), np.float32), state)


def test_a_sum_that_is_not_reduced_is_refused():
    layout = Layout("", (8,), (AUTO,), SPLIT_8, manual=True)
    with pytest.raises(FixArgumentsError, match=r"\['b'\] differs between the shards.*specs="):
        layout.compiled(steps(gaussian(), 1), layout.place(GRADIENT))
    with pytest.raises(FixArgumentsError, match="reduce_axes"):
        layout.compiled(steps(gaussian(specs=WHOLE), 1), layout.place(GRADIENT))

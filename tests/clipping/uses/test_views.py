"""Views of parameters, and pulling gradients back: slices, transposes, reshapes and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping.uses.test_taps import (
    OPAQUE,
    OVERLAPPING,
    TAPPED,
    W,
    X,
    assert_equals_grad,
    assert_understood,
    dot,
    draw,
    squared,
    traced,
)
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.norms.registry import SEPARATE, SHARED
from bevel.clipping.uses.find import find_uses
from bevel.clipping.uses.views import (
    LoopEntry,
    covers,
    dimensions,
    disjoint,
    itemsize_in_loop,
    loops_of,
    pull_back,
    rearranges,
)

ROWS = draw(2, 1, 4, 6)


def pair(first, second):
    """A loss in which two parts of a parameter meet different values."""
    return lambda w, x: squared(x @ first(w)) + squared(jnp.tanh(x) @ second(w))


PROGRAMS = {
    TAPPED: {
        "with a new dimension": (
            W,
            ROWS,
            lambda w, x: squared(jnp.einsum("btd,dok->btok", x, w[:, None, :])),
        ),
        "transposed": (draw(3, 6), X, lambda w, x: squared(x @ w.T)),
        "reshaped and transposed": (
            draw(2, 3, 3),
            X,
            lambda w, x: squared(x @ w.reshape(3, 6).T.reshape(2, 9).reshape(6, 3)),
        ),
        "squeezed": (draw(6, 1, 3), X, lambda w, x: squared(x @ jnp.squeeze(w, 1))),
        "copied": (W, X, lambda w, x: squared(x @ jnp.array(w, copy=True))),
        "reversed": (W, X, lambda w, x: squared(x @ jnp.flip(w, 0))),
        "reversed in a permuted dimension": (
            draw(3, 6),
            X,
            lambda w, x: squared(x @ lax.rev(w.T, (1,))),
        ),
        "a slice": (draw(9, 3), X, lambda w, x: squared(x @ w[2:8])),
        "every second row": (draw(14, 3), X, lambda w, x: squared(x @ w[1:12:2])),
        "slices of slices, transposed": (
            draw(4, 9),
            ROWS,
            lambda w, x: squared(x @ w[:, 1:][1:].T[1:7]),
        ),
        "cut in three, side by side": (
            draw(6, 12),
            ROWS,
            lambda w, x: squared(sum(jnp.tanh(x @ w[:, i : i + 4]) for i in (0, 4, 8))),
        ),
        "cut after a transpose and before": (
            draw(6, 6),
            ROWS,
            pair(lambda w: w.T[:, :4], lambda w: w[4:].T),
        ),
        "sliced, then rearranged": (
            draw(13, 3),
            ROWS,
            pair(lambda w: w[:6][::-1], lambda w: w[7:].reshape(3, 6).T),
        ),
    },
    OVERLAPPING: {
        "overlapping slices": (draw(6, 6), ROWS, pair(lambda w: w[:, :4], lambda w: w[:, 2:])),
        "overlapping by one row": (draw(11, 3), ROWS, pair(lambda w: w[:6], lambda w: w[5:])),
        "overlapping slices of slices": (
            draw(14, 3),
            ROWS,
            pair(lambda w: w[2:][:6], lambda w: w[7:13]),
        ),
        "the same slice twice": (draw(9, 3), ROWS, pair(lambda w: w[:6], lambda w: w[:6])),
        "a slice and the whole": (draw(6, 6), ROWS, pair(lambda w: w[:, :3], lambda w: w)),
        "cut after a transpose, overlapping": (
            draw(6, 6),
            ROWS,
            pair(lambda w: w.T[:, :4], lambda w: w[:4].T),
        ),
        # Disjoint, but only the strides and the reversed order show it.
        "even and odd rows": (draw(12, 3), ROWS, pair(lambda w: w[::2], lambda w: w[1::2])),
        "reversed, then cut": (draw(12, 3), ROWS, pair(lambda w: w[::-1][:6], lambda w: w[:6])),
        "reversed and as it is": (W, ROWS, pair(lambda w: w[::-1], lambda w: w)),
        "reshaped and as it is": (
            draw(6, 6),
            ROWS,
            lambda w, x: (
                squared(jnp.einsum("btd,dhk->bthk", x, w.reshape(6, 2, 3)))
                + squared(jnp.tanh(x) @ w)
            ),
        ),
    },
    OPAQUE: {
        "split by one equation": (
            draw(6, 12),
            ROWS,
            lambda w, x: squared(sum(jnp.tanh(x @ v) for v in jnp.split(w, 3, axis=1))),
        ),
    },
}
CASES = [(kind, name) for kind in PROGRAMS for name in PROGRAMS[kind]]


@pytest.mark.parametrize("kind, name", CASES)
def test_how_parameters_are_understood(kind, name):
    assert_understood(kind, *PROGRAMS[kind][name])


@pytest.mark.parametrize("kind, name", CASES)
def test_gradients_at_the_end_of_a_route_are_those_at_its_start(kind, name):
    assert_equals_grad(*PROGRAMS[kind][name])


@pytest.mark.parametrize("shape", [(2, 9), (3, 6)])
def test_a_reshape_that_permutes_is_right_either_way(shape):
    program = (draw(*shape), X, lambda w, x: squared(x @ lax.reshape(w, (6, 3), (1, 0))))
    assert_equals_grad(*program)


def only_use(params, batch, loss):
    program, flat = traced(params, batch, loss)
    ((use,),) = find_uses(program, len(flat)).values()
    return use


def test_a_gradient_goes_back_behind_the_dimensions_of_loops():
    shape = (2, 3, 8, 6)

    def loss(w, x):
        def outer(h, v):
            return lax.scan(lambda h, u: (jnp.tanh(h @ u[1:7].T[::-1].T), None), h, v[::-1])[
                0
            ], None

        return squared(lax.scan(outer, x, w)[0])

    use = only_use(draw(*shape), X, loss)
    assert use.loops == loops_of(use.view) == ((SEPARATE, 2), (SEPARATE, 3))
    at_operand = draw(2, 3, 6, 6)
    back = np.zeros(shape, np.float32)
    for i in range(2):
        for j in range(3):
            back[i, 2 - j, 1:7] = np.asarray(at_operand)[i, j, :, ::-1]
    np.testing.assert_array_equal(pull_back(use.view, at_operand), back)


def test_dimensions_and_the_part_that_is_used():
    use = only_use(
        draw(9, 1, 7, 5),
        draw(2, 5, 3),
        lambda w, x: squared(
            dot(x, jnp.squeeze(w, 1)[2:8][1:4].transpose(1, 2, 0)[:, :, ::2], (0,), (1,))
        ),
    )
    dims, region = dimensions(use.view, (9, 1, 7, 5))
    assert dims == (2, 3, None)  # a strided slice is not tracked further
    assert region == ((3, 6), (0, 1), (0, 7), (0, 5))  # strides do not change the region
    assert not covers(region, (9, 1, 7, 5)) and covers(((0, 2),), (2,))


@pytest.mark.parametrize(
    "arrange", [lambda w: w.reshape(6, 3), lambda w: w[::-1].reshape(2, 3, 3).reshape(6, 3)]
)
def test_dimensions_that_a_reshape_or_a_reversal_mixes_are_not_known(arrange):
    use = only_use(draw(2, 9), X, lambda w, x: squared(x @ arrange(w)))
    assert dimensions(use.view, (2, 9)) == (None, ((0, 2), (0, 9)))


def test_regions_are_disjoint_if_one_dimension_separates_them():
    assert disjoint(((0, 2), (0, 3)), ((2, 4), (0, 3)))
    assert disjoint(((0, 4), (2, 3)), ((0, 4), (0, 2)))
    assert not disjoint(((0, 3), (0, 3)), ((2, 4), (2, 3)))
    assert not disjoint((), ())  # a scalar has one region


def test_entries_into_loops():
    loops = loops_of((LoopEntry(SEPARATE, 3), LoopEntry(SHARED, 2)))
    assert loops == ((SEPARATE, 3), (SHARED, 2))


@pytest.mark.parametrize(
    "rearranged, passes",
    [
        (lambda w: w.T, True),
        (lambda w: w.reshape(18), True),
        (lambda w: w.astype(jnp.bfloat16), True),
        (lambda w: w.astype(jnp.int32), False),
        (lambda w: w.astype(jnp.complex64), False),
        (lambda w: w[1:2], True),
        (lambda w: w[::-1], True),
        (lambda w: 2 * w, False),
        (lambda w: -w, False),
        (lambda w: jnp.broadcast_to(w, (2, 6, 3)), False),
        (lambda w: jnp.sum(w, 0), False),
        (lambda w: lax.cumsum(w), False),
        (lambda w: lax.pad(w, jnp.float32(0), [(1, 0, 0), (0, 0, 0)]), False),
        (lax.stop_gradient, False),
    ],
)
def test_only_rearrangements_pass_a_parameter_on(rearranged, passes):
    eqns = jax.make_jaxpr(rearranged)(W).eqns
    assert all(map(rearranges, eqns)) == passes


@pytest.mark.parametrize("norms", ["gram", "product"])
def test_norms_where_shards_see_parts_of_one_example(norms):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    sequences = draw(4, 8, 6)  # examples, positions that are split over the model axis

    def loss(w, x):
        return lax.psum(squared(x @ w), "model")

    def unsplit(w, x):
        return 4 * squared(x @ w)

    def step(w, x):
        fn = bevel.clipped_grad(
            loss, l2_clip_norm=0.1, return_grad_norms=True, batch_axes="data", norms=norms
        )
        return fn(w, x)[1].grad_norms

    specs = {"in_specs": (P(), P("data", "model")), "out_specs": P("data")}
    got = jax.jit(jax.shard_map(step, mesh=mesh, **specs))(W, sequences)
    true = [np.linalg.norm(jax.grad(unsplit)(W, x[None])) for x in sequences]
    np.testing.assert_allclose(got, true, rtol=2e-5)


@pytest.mark.parametrize("inside, itemsize", [(True, 4), (False, 0)])
def test_the_itemsize_in_a_loop_is_that_of_what_the_loop_reads(inside, itemsize):
    """A loop that casts its slice of a parameter stacks gradients in the dtype before the cast."""

    def loss(w, x):
        w = w if inside else w.astype(jnp.bfloat16)
        step = lambda x, w: (jnp.tanh(x @ w.astype(jnp.bfloat16)), None)  # noqa: E731
        return squared(lax.scan(step, x.astype(jnp.bfloat16), w)[0].astype(jnp.float32))

    program = jax.make_jaxpr(loss)(draw(3, 6, 6), draw(1, 4, 6))
    ((use,),) = find_uses(program, 1, 0).values()
    assert itemsize_in_loop(use.view) == itemsize
    assert itemsize_in_loop(()) == 0

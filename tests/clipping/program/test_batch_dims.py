"""Dimensions that run over the examples of a batch, followed through a program."""

import jax
import jax.numpy as jnp
import pytest

from bevel.clipping.program.batch_dims import (
    Factor,
    batch,
    count_of_examples,
    length,
    merged,
    output_dims,
    plain,
    regrouped,
)

B = 3
EXAMPLES, T, D = Factor(B, True), Factor(4), Factor(5)


def at(dims):
    """Where the examples are: (dimension, position in it)."""
    return [(k, j) for k, dim in enumerate(dims) for j, factor in enumerate(dim) if factor.examples]


def followed(function, *arguments, examples=(0,)):
    """The dimensions of the result of a function, by the rules alone."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    values = {
        var: batch(var.aval.shape) if k in examples else plain(var.aval.shape)
        for k, var in enumerate(jaxpr.invars)
    }
    for eqn in jaxpr.eqns:
        inputs = [
            () if hasattr(v, "val") else values.get(v, plain(v.aval.shape)) for v in eqn.invars
        ]
        outputs = output_dims(eqn, inputs)
        for var, dims in zip(eqn.outvars, outputs, strict=True):
            assert [length(dim) for dim in dims] == list(var.aval.shape), eqn
            values[var] = dims
    return values[jaxpr.outvars[0]]


X = jnp.ones((B, 4, 5))
W = jnp.ones((5, 6))
OPERATIONS = {
    "elementwise": (lambda x: jnp.sin(x) + 1, [(0, 0)]),
    "sum over the rest": (lambda x: x.sum((1, 2)), [(0, 0)]),
    "sum over examples": (lambda x: x.sum(0), []),
    "maximum": (lambda x: x.max(1), [(0, 0)]),
    "transpose": (lambda x: x.transpose(2, 0, 1), [(1, 0)]),
    "new dimension": (lambda x: jax.lax.broadcast_in_dim(x, (7, B, 4, 5), (1, 2, 3)), [(1, 0)]),
    "merged": (lambda x: x.reshape(B * 4, 5), [(0, 0)]),
    "merged and split": (lambda x: x.reshape(B * 4, 5).reshape(B, 2, 2, 5), [(0, 0)]),
    "merged last": (lambda x: x.transpose(1, 0, 2).reshape(4 * B, 5), [(0, 1)]),
    "split last": (lambda x: x.transpose(1, 0, 2).reshape(4 * B, 5).reshape(4, B, 5), [(1, 0)]),
    "matrix": (lambda x: jax.lax.dot_general(x, W, (((2,), (0,)), ((), ()))), [(0, 0)]),
    "batched product": (
        lambda x: jax.lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,)))),
        [(0, 0)],
    ),
    "product over examples": (lambda x: jax.lax.dot_general(x, x, (((0,), (0,)), ((), ()))), []),
    "pairs": (lambda x: jax.lax.dot_general(x, x, (((1, 2), (1, 2)), ((), ()))), [(0, 0), (1, 0)]),
    "concatenate": (lambda x: jnp.concatenate([x, x], 1), [(0, 0)]),
    "concatenate examples": (lambda x: jnp.concatenate([x, x], 0), [(0, 0)]),
    "slice": (lambda x: jax.lax.slice(x, (0, 1, 0), (B, 3, 5)), [(0, 0)]),
    "a slice of the batch": (lambda x: jax.lax.slice(x, (1, 0, 0), (2, 4, 5)), []),
    "split": (lambda x: jax.lax.split(x, (2, 2), axis=1)[0], [(0, 0)]),
    "sort": (lambda x: jax.lax.sort(x, dimension=2), [(0, 0)]),
    "pad": (lambda x: jax.lax.pad(x, 0.0, ((0, 0, 0), (1, 1, 0), (0, 0, 0))), [(0, 0)]),
}


@pytest.mark.parametrize("function, where", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_examples_are_followed(function, where):
    assert at(followed(function, X)) == where


def test_lookups_have_the_dimensions_of_their_indices():
    table, rows = jnp.ones((9, 5)), jnp.zeros((B, 4), jnp.int32)
    look = jax.lax.GatherDimensionNumbers(
        offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )

    def lookup(rows, table):
        return jax.lax.gather(table, rows[..., None], look, (1, 5), mode="clip")

    assert at(followed(lookup, rows, table)) == [(0, 0)]

    def columns(x, rows):
        return jax.lax.gather(x, rows, look, (1, 5), mode="clip")

    assert at(followed(columns, jnp.ones((9, 5)), jnp.zeros((2, 2, 1), jnp.int32))) == []


@pytest.mark.parametrize("vmapped", [False, True])
def test_images_stay_apart_in_a_convolution(vmapped):
    kernel = jnp.ones((3, 5, 6))

    def convolved(x):
        return jax.lax.conv_general_dilated(
            x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )

    if vmapped:
        dims = followed(jax.vmap(lambda x: convolved(x[None])), X)
        assert count_of_examples(dims) == 1
        per_example = jnp.ones((B, 3, 5, 6))  # becomes groups of channels
        grouped = jax.vmap(
            lambda x, k: jax.lax.conv_general_dilated(
                x[None], k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
        )
        assert count_of_examples(followed(grouped, X, per_example, examples=(0, 1))) == 1
    else:
        assert at(followed(convolved, X)) == [(0, 0)]


def test_a_batch_of_one_keeps_its_place():
    one = batch((1, 4, 5))
    assert at(regrouped(one, (1, 20))) == [(0, 0)]
    assert at(regrouped(one, (4, 5))) == [(0, 0)]  # as (B * 4, 5) would
    assert at(regrouped(one, (1, 1, 20))) == [(0, 0)]
    assert at(regrouped(((T,), (Factor(1, True),)), (4, 1))) == [(1, 0)]
    assert at(regrouped(((T,), (Factor(1, True),)), (4,))) == [(0, 1)]


def test_a_reshape_that_splits_the_examples_loses_them():
    six = batch((6, 4))
    assert at(regrouped(six, (2, 12))) == []
    assert at(regrouped(six, (24,))) == [(0, 0)]


def test_unknown_operations_keep_an_input_of_the_same_shape():
    assert at(merged((B, 4), [plain((B, 4)), ((EXAMPLES,), (T,))])) == [(0, 0)]
    assert at(merged((B, 5), [((EXAMPLES,), (T,))])) == []
    pairs = merged((B, B), [((EXAMPLES,), (Factor(1),)), ((Factor(1),), (EXAMPLES,))])
    assert at(pairs) == [(0, 0), (1, 0)]
    assert merged((4, 5), [((EXAMPLES,), (T,), (D,))]) == plain((4, 5))

"""Models of sequences ignore padding, and do not look ahead."""

import jax
import numpy as np
import pytest
from model_specs import NEXT, TOKENS, records

from bevel.models.text import linear_text, text

KEY = jax.random.key(0)


def with_outputs(model):
    """Random parameters, with a last layer that is not zero."""
    params = model.init(KEY)
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(KEY, len(leaves))
    return jax.tree.unflatten(
        treedef,
        [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)],
    )


@pytest.mark.parametrize("make", [linear_text, lambda data: text(data, 0, 8)])
def test_a_bag_depends_on_the_frequencies_of_tokens_alone(make):
    model = make(TOKENS)
    params = with_outputs(model)
    x = np.int32([[3, 5, 3, 0, 0, 0, 0], [5, 3, 3, 0, 0, 0, 0], [3, 3, 5, 3, 3, 5, 0]])
    outputs = np.asarray(model.predict(params, x))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5)
    np.testing.assert_allclose(outputs[0], outputs[2], rtol=1e-5)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_sequence_of_padding_has_finite_outputs(depth):
    model = text(TOKENS, depth, 8)
    assert np.isfinite(model.predict(with_outputs(model), np.zeros((2, 7), np.int32))).all()


@pytest.mark.parametrize("make", [linear_text, lambda data: text(data, 2, 8)])
def test_a_prediction_does_not_depend_on_later_tokens(make):
    model = make(NEXT)
    params = with_outputs(model)
    x = records(NEXT, 3)["x"]
    x[:, :2] = 0  # also for sequences that are padded on the left
    later = x.copy()
    later[:, 4:] = 7
    before, after = (np.asarray(model.predict(params, tokens)) for tokens in (x, later))
    np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=1e-5, atol=1e-6)
    assert not np.allclose(before[:, 4:], after[:, 4:])


def test_attention_sees_earlier_tokens_and_their_order():
    model = text(NEXT, 1, 8)
    params = with_outputs(model)
    first, second = (
        model.predict(params, np.int32([[*begin, 9, 0, 0, 0, 0]])) for begin in ((2, 4), (4, 2))
    )
    assert not np.allclose(first[0, 2], second[0, 2])

"""The arguments of a loss are checked before anything else, and the advice fits the mistake."""

import functools

import pytest
import training_runs as runs

from bevel.errors import FixLossError
from bevel.training.loss_signature import check_signature


def two(params, data):
    return runs.loss(params, data, None)


def three(params, data, prng):
    return runs.loss(params, data, prng)


def four(params, model_state, data, prng):
    return runs.loss(params, data, prng)


def labels(params, x, y):
    return runs.loss(params, {"x": x, "y": y}, None)


def training(params, data, prng, *, train):
    return runs.loss(params, data, prng)


def by_name(params, data, *, prng):
    return runs.loss(params, data, prng)


WRONG = {
    "a key by name": (by_name, False, r"remove the `\*` before 'prng'"),
    "two arguments": (two, False, r"takes \(params, data\).*Add `prng` as the last argument"),
    "four without a state": (four, False, r"pass it as fit\(..., model_state=...\)"),
    "three with a state": (three, True, "Add `model_state` as the second argument"),
    "two with a state": (two, True, "Put all data into one tree"),
    "labels": (labels, False, r"'y' would be a random key. Pass the data as one tree"),
    "a keyword": (training, False, r"functools.partial\(loss_fn, train=...\)"),
    "none": (None, False, r"loss_fn is a NoneType: pass a function loss_fn\(params, data, prng\)"),
    "bound by name": (functools.partial(four, model_state=None), False, "Put all data into one"),
    "one argument": (lambda p: p, False, "Put all data into one tree"),
}


@pytest.mark.parametrize("loss, has_state, said", WRONG.values(), ids=WRONG.keys())
def test_advice_fits_the_mistake(loss, has_state, said):
    with pytest.raises(FixLossError, match=said) as error:
        check_signature(loss, has_model_state=has_state)
    assert "keep_batch_dim" not in str(error.value)


@pytest.mark.parametrize(
    "loss, has_state",
    [
        (three, False),
        (four, True),
        (functools.partial(training, train=True), False),
        (lambda *args: None, False),
        (lambda params, data, prng, temperature=1.0: None, False),
        (lambda params, state, y, prng: None, True),
        (max, False),
    ],
)
def test_other_callables_pass(loss, has_state):
    check_signature(loss, has_model_state=has_state)


def test_the_signature_is_checked_before_data_and_parameters():
    with pytest.raises(FixLossError, match="Add `prng`"):
        runs.trainer(loss_fn=two).fit("no data", {"w": "no array"})
    with pytest.raises(FixLossError, match="Add `prng`"):
        runs.trainer(loss_fn=two).init(runs.params())
    state = runs.trainer(loss_fn=four).init(runs.params(), model_state={})
    with pytest.raises(FixLossError, match="Add `model_state`"):
        runs.fit(of=runs.trainer(loss_fn=three), begin=state)

"""How a loss is called, and what it may do with the model."""

import functools

import jax
import jax.numpy as jnp
import pytest

from bevel.errors import FixArgumentsError, FixLossError
from bevel.frameworks.loss_checks import call_loss, check_effects, split_result

LOSSES = {
    "two": (lambda model, batch: (model, batch), ("m", "b")),
    "key": (lambda model, batch, key: (model, batch, key), ("m", "b", "k")),
    "keyword": (lambda model, batch, *, key: (model, key), ("m", "k")),
    "default": (lambda model, batch, key=None: (model, key), ("m", "k")),
    "bound": (functools.partial(lambda extra, model, batch: extra, "e"), "e"),
    "any": (lambda *args: args, ("m", "b")),
    "builtin": (max, "m"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_gets_what_it_has_parameters_for(name):
    loss, expected = LOSSES[name]
    assert call_loss(loss, "m", "b", key="k") == expected


def test_a_loss_that_cannot_be_called_is_refused():
    for loss in (lambda model: 0, lambda model, x, y: 0, lambda model, batch, rng: 0):
        with pytest.raises(FixLossError, match=r"called as loss\(model, batch\)"):
            call_loss(loss, "m", "b", key="k")
    with pytest.raises(FixArgumentsError, match=r"call grad_fn\(model, batch, key\)"):
        call_loss(lambda model, batch, key: 0, "m", "b", key=None)


def test_a_loss_may_return_aux_or_not():
    assert split_result(1.0) == (1.0, {})
    assert split_result((1.0, "aux")) == (1.0, "aux")
    with pytest.raises(FixLossError, match="returned 3 values"):
        split_result((1, 2, 3))


def effects(changed):
    def run(params, state, batch, key):
        loss = (params * batch).sum()
        return loss, changed(params, state, batch, key)

    return run


ARGUMENTS = jnp.ones(2), jnp.zeros(2), jnp.ones((1, 2)), jax.random.key(0), "its averages"
ALLOWED = {
    "a counter": lambda params, state, batch, key: {"count": state + 1},
    "parameters": lambda params, state, batch, key: {"norm": params / 2},
    "random": lambda params, state, batch, key: {"mask": jax.random.normal(key, (2,))},
    "passed through jit": lambda params, state, batch, key: {
        "state": jax.jit(lambda state, batch: (state, batch.sum()))(state, batch)[0]
    },
    "passed through remat": lambda params, state, batch, key: {
        "state": jax.checkpoint(lambda state, batch: (state, batch.sum()))(state, batch)[0]
    },
}


@pytest.mark.parametrize("name", ALLOWED)
def test_changes_that_do_not_depend_on_the_batch_are_allowed(name):
    check_effects(effects(ALLOWED[name]), *ARGUMENTS)


def test_changes_that_depend_on_the_batch_are_refused():
    def changed(params, state, batch, key):
        return {"z/count": state + 1, "a/mean": 0.9 * state + 0.1 * batch[0], "b": state}

    with pytest.raises(
        FixLossError, match=r"changes a/mean.*released without noise.*or its averages"
    ):
        check_effects(effects(changed), *ARGUMENTS)


def test_a_loss_that_ignores_the_parameters_is_refused():
    def ignoring(params, state, batch, key):
        return batch.sum(), {}

    with pytest.raises(FixLossError, match="does not depend on the trained parameters"):
        check_effects(ignoring, *ARGUMENTS)

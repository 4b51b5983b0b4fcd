"""A module without state has a loss without state; one with state passes it on."""

import jax
import jax.numpy as jnp
import pytest
from model_specs import TABLE, records

from bevel.frameworks import FunctionalModel
from bevel.models.framework_model import FrameworkModel


@pytest.mark.parametrize("state", [{}, {"table": jnp.full(3, 2.0)}])
def test_the_state_is_passed_only_if_there_is_one(state):
    def loss_fn(params, model_state, data, prng):
        return params.sum() + sum(x.sum() for x in model_state.values()), {}

    functional = FunctionalModel(jnp.ones((5, 3)), state, loss_fn, lambda params: params)
    built = FrameworkModel(functional, lambda model, x: x @ model).built()
    given = () if built.model_state is None else (built.model_state,)
    assert len(given) == len(state)
    loss, _ = built.loss_fn(built.init(), *given, records(TABLE, 1), jax.random.key(0))
    assert float(loss) == 15.0 + 6.0 * len(state)
    assert built.predict(built.init(), records(TABLE, 2)["x"]).shape == (2, 3)

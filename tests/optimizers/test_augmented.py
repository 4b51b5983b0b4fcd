"""optax optimizers as augmented optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.errors import FixArgumentsError
from bevel.optimizers import as_augmented_optimizer, scale_then_privatize

# optax mixes dtypes in Adam's bias correction.
pytestmark = pytest.mark.usefixtures("standard_promotion")

PARAMS = {"w": jnp.arange(3.0), "b": jnp.ones(())}
GRADS = {"w": jnp.asarray([1.0, -2.0, 3.0]), "b": jnp.full((), 0.5)}


@pytest.fixture
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("base", [optax.sgd(0.1), optax.adam(0.1), optax.adamw(0.1)])
def test_a_wrapped_optimizer_gives_the_same_updates(base):
    augmented = as_augmented_optimizer(base)
    state, plain = augmented.init(PARAMS), base.init(PARAMS)
    for _ in range(3):
        updates, state = augmented.update(GRADS, state, PARAMS, value=1.0)
        expected, plain = base.update(GRADS, plain, PARAMS)
        jax.tree.map(np.testing.assert_array_equal, updates, expected)
    jax.tree.map(np.testing.assert_array_equal, state, plain)


def test_accumulation_of_noised_gradients_is_refused_with_the_way_out():
    with pytest.raises(FixArgumentsError, match=r"larger expected_batch_size.*microbatch_size"):
        as_augmented_optimizer(optax.MultiSteps(optax.sgd(0.1), every_k_schedule=4))
    hidden = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=4).gradient_transformation()
    with pytest.raises(FixArgumentsError, match="accumulate gradients that each have"):
        as_augmented_optimizer(optax.chain(optax.clip(1.0), hidden)).init(PARAMS)


def test_a_wrapped_optimizer_does_not_transform_gradients():
    augmented = as_augmented_optimizer(optax.adam(0.1))
    transform = augmented.pre_clipping_transform(augmented.init(PARAMS))
    assert transform(GRADS) is GRADS
    assert transform(GRADS, inverse=True) is GRADS


def test_an_augmented_optimizer_is_returned_unchanged():
    augmented = scale_then_privatize(optax.adam(0.1))
    assert as_augmented_optimizer(augmented) is augmented


def test_other_types_are_rejected():
    for other in [optax.adam, None, "adam"]:
        with pytest.raises(FixArgumentsError, match=r"pass an optax\.GradientTransformation"):
            as_augmented_optimizer(other)

"""Keras promotes dtypes and ranks on its own, which the other tests forbid."""

import jax
import pytest
from compiled_once import compiled_once  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield

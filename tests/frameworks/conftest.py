"""The frameworks promote dtypes and ranks on their own, which the other tests forbid."""

import jax
import pytest


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield

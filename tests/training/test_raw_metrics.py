"""Raw metrics of a batch do not include padding."""

import jax.numpy as jnp
import numpy as np
import pytest

from bevel.clipping import Aux
from bevel.training.raw_metrics import measures


def measured(padding):
    rows = 4 + padding
    values = np.r_[1.0, 2.0, 3.0, 6.0, np.full(padding, 99.0)].astype(np.float32)
    norms = np.r_[0.5, 1.5, 2.5, np.nan, np.full(padding, 50.0)].astype(np.float32)
    right = np.r_[1, 0, 1, 0, np.ones(padding)].astype(bool)
    aux = Aux(jnp.asarray(values), jnp.asarray(norms), {"accuracy": jnp.asarray(right)})
    sums = {"w": jnp.full((2, 8), 3.0)}
    return measures(aux, sums, jnp.arange(rows) >= 4, 1.0, 0.5)


@pytest.mark.parametrize("padding", [0, 3])
def test_they_are_those_of_the_real_rows(padding):
    found = {name: np.asarray(value) for name, value in measured(padding).items()}
    assert found["batch_size"] == 4 and found["not_finite"] == 1
    assert found["loss"] == 3.0 and found["accuracy"] == 0.5
    assert found["clipped_fraction"] == pytest.approx(2 / 3)
    assert found["norm_quantiles"] == pytest.approx(np.quantile([0.5, 1.5, 2.5], [0.1, 0.5, 0.9]))
    assert found["signal_to_noise"] == pytest.approx(12 / (0.5 * 4))


def test_an_empty_batch_has_no_means():
    aux = Aux(jnp.ones(2), jnp.ones(2), {})
    found = measures(aux, jnp.zeros(3), jnp.ones(2, bool), 1.0, 1.0)
    assert found["batch_size"] == 0 and np.isnan(found["loss"])
    assert np.isnan(found["norm_quantiles"]).all() and found["not_finite"] == 0

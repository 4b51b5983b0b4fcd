"""What a function may return, and what is refused."""

import sys

import jax
import numpy as np
import pytest
from model_specs import TABLE, data_of, records
from own_models import job_of

from bevel.errors import FixLossError
from bevel.models import Model
from bevel.models.own_model import own_model, plain_model

pytestmark = pytest.mark.usefixtures("standard_promotion")
LINEAR = """
import jax.numpy as jnp
from bevel.models import Model

def init(key):
    return jnp.zeros((5, 3))

def predict(params, x):
    return x @ params
"""


def made(tmp_path, line, spec=TABLE, code=LINEAR):
    path = tmp_path / "mine.py"
    path.write_text(f"{code}\ndef build(data):\n    {line}\n")
    return own_model(f"{path}:build", spec, init_seed=0)


@pytest.mark.parametrize(
    "parameters", ["params, batch", "params, batch, key", "params, data, prng"]
)
def test_a_loss_of_ones_own_may_take_a_key(tmp_path, parameters):
    code = f"{LINEAR}\ndef loss({parameters}):\n    return (params ** 2).sum() + 3.0\n"
    built = made(tmp_path, "return Model(init, predict, loss)", code=code)
    loss, aux = built.loss_fn(np.ones((5, 3), np.float32), records(TABLE, 1), jax.random.key(0))
    assert float(loss) == 18.0
    assert aux == {}


def test_the_seed_of_the_config_makes_the_parameters():
    model = Model(lambda key: jax.random.normal(key, (5, 3)), lambda params, x: x @ params)
    first = plain_model(model, TABLE, jax.random.key(7)).init()
    np.testing.assert_array_equal(first, jax.random.normal(jax.random.key(7), (5, 3)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pass", r"returned None: add a return statement. Return bevel.models.Model\(init, pred"),
        ("return Model", r"returned the class Model: return an instance of it, such as Model\("),
        ("return 3", r"returned a int. Return bevel"),
        ("return init, 3", r"returned a tuple of function, int. Return"),
        ("return predict", r"returned a function. Return"),
        ("return Model(init, 3)", r"predict of its Model is not a function"),
        ("return Model(init, predict, 3)", r"loss of its Model is not a function"),
    ],
)
def test_something_else_is_refused(tmp_path, line, message):
    with pytest.raises(FixLossError, match=message) as caught:
        made(tmp_path, line)
    assert "mine.py:build" in str(caught.value)


def test_frameworks_that_the_file_does_not_use_are_not_imported(tmp_path, monkeypatch):
    for name in ("flax.nnx", "flax.linen", "equinox", "keras"):
        monkeypatch.setitem(sys.modules, name, None)
    assert made(tmp_path, "return Model(init, predict)").model_state is None


def test_a_run_resumes_with_its_model_and_refuses_another(tmp_path):
    data, path = data_of(TABLE), tmp_path / "mine.py"
    code = f"{LINEAR}\ndef build(data):\n    return Model(init, predict)\n"
    state = job_of(data, path, code).fit(folder=tmp_path / "run", progress=False)
    assert int(state.step) == 2
    again = job_of(data, path, code).fit(folder=tmp_path / "run", progress=False)
    np.testing.assert_array_equal(state.params, again.params)
    with pytest.raises(ValueError, match="the loss's program differs"):
        changed = code.replace("x @ params", "2.0 * x @ params")
        job_of(data, path, changed).fit(folder=tmp_path / "run", progress=False)

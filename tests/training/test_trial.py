"""The step is compiled and timed on zeros: no record is read, and the state is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.execution_plan import DPSGDConfig
from bevel.sharding import make_mesh
from bevel.training import Trainer
from bevel.training import trial as trials
from bevel.training.trial import try_step


class Unreadable:
    """A source of records that must not be read."""

    def __init__(self):
        self.record = {"x": jax.ShapeDtypeStruct((3,), np.float32)}

    def __len__(self):
        return 40

    def read(self, indices):
        raise AssertionError("a record was read")


def loss(params, data, prng):
    return jnp.mean((data["x"] @ params) ** 2), {}


@pytest.mark.parametrize("mesh", [None, "data=2"])
def test_no_record_is_read_and_the_state_is_kept(mesh, monkeypatch):
    monkeypatch.setattr(trials, "SECONDS", 0.0)
    trainer = Trainer(
        config=DPSGDConfig.default(40, 8, 5, noise_multiplier=1.0),
        loss_fn=loss,
        optimizer=optax.sgd(0.1),
        mesh=mesh and make_mesh(mesh, devices=jax.devices()[:2]),
    )
    begin = trainer.init(jnp.ones(3))
    found = try_step(trainer, begin, Unreadable(), compilations=1)
    assert found.padded_sizes == trainer.sizes(1).sizes
    assert found.step_seconds > 0 and found.compile_seconds > 0
    assert found.device_bytes > found.padded_sizes[0] * 3 * 4 / (2 if mesh else 1)
    assert found.state_bytes >= 4 + 3 * 4
    assert set(found.digests) == {"optimizer", "loss", "loss.derivative"}
    assert int(begin.step) == 0 and begin.params.tolist() == [1, 1, 1]


def test_the_trial_is_of_users_if_they_are_protected(monkeypatch):
    monkeypatch.setattr(trials, "SECONDS", 0.0)
    trainer = Trainer(
        config=DPSGDConfig.default(
            10, 4, 5, noise_multiplier=1.0, unit="user", examples_per_user_per_batch=2
        ),
        loss_fn=loss,
        optimizer=optax.sgd(0.1),
    )
    found = try_step(trainer, trainer.init(jnp.ones(3)), Unreadable(), compilations=1)
    assert found.step_seconds > 0

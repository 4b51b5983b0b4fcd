"""Attack a private trainer, and then one whose noise is too small.

python examples/auditing.py
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_platforms", "cpu")

from bevel import DPSGDConfig  # noqa: E402
from bevel.auditing import audit  # noqa: E402
from bevel.training import RunOptions, Trainer  # noqa: E402
from bevel.training.private_step import PrivateStep  # noqa: E402

rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 6_000)
points = rng.normal(size=(6_000, 64)).astype(np.float32) + labels[:, None] - 0.5
data = {"x": points, "y": labels.astype(np.int32)}


def loss_fn(params, data, prng):
    logits = jnp.tanh(data["x"] @ params["hidden"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, data["y"]).mean(), {}


params = {
    "hidden": jax.random.normal(jax.random.key(0), (64, 96)) / 8,
    "out": jnp.zeros((96, 2)),
}
config = DPSGDConfig.default(num_examples=6_000, expected_batch_size=6_000, iterations=2)
config = config.calibrate(epsilon=4, delta=1e-5)
options = RunOptions(progress=False, compilations=1)


def audited():
    trainer = Trainer(config=config, loss_fn=loss_fn, optimizer=optax.sgd(0.5))
    result = audit(trainer, data, params, canaries=5_000, seed=1, options=options)
    print(result, end="\n\n")
    return result


assert audited().passed

add_noise = PrivateStep.add_noise


def add_a_third_of_the_noise(step, sums, state, key):
    noised, noise_state = add_noise(step, sums, state, key)
    return jax.tree.map(lambda a, b: (a + 2 * b) / 3, noised, sums), noise_state


with mock.patch.object(PrivateStep, "add_noise", add_a_third_of_the_noise):
    assert not audited().passed

"""Train with a plan: a calibrated budget, an adaptive clip norm, and a ledger.

python examples/plan.py
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bevel
from bevel.accounting import Ledger

N, BATCH, STEPS = 2_000, 200, 40

config = bevel.DPSGDConfig.default(
    num_examples=N,
    expected_batch_size=BATCH,
    iterations=STEPS,
    l2_clip_norm=10.0,  # ten times too large, but it adapts
    adaptive_clipping=bevel.AdaptiveClipping(),
)
plan = config.calibrate(epsilon=4, delta=1e-4).make()
plan.describe()

rng = np.random.default_rng(0)
inputs = rng.normal(size=(N, 5)).astype(np.float32)
labels = (inputs @ np.arange(1, 6) > 0).astype(np.float32)


def loss(w, batch):
    x, y = batch
    return jnp.mean(jnp.logaddexp(0.0, x @ w) - y * (x @ w))


noise, sizes = plan.noise_addition_transform, plan.padded_sizes()


@jax.jit
def step(w, noise_state, batch, padding, key):
    clip = plan.clip_norm(noise_state)
    sums = plan.clipped_grad(loss, clip_norm=clip)(w, batch, is_padding_example=padding)
    grads, noise_state = noise.update(sums, noise_state, prng_key=key)
    return w - 4.0 * grads, noise_state


w = jnp.zeros(5)
noise_state, key = noise.init(w), plan.secrets.noise_key
terms = {"unit": plan.unit.name, "relation": plan.neighboring_relation, "budget": plan.budget}
folder = tempfile.TemporaryDirectory()
with folder, Ledger.open(Path(folder.name) / "ledger.jsonl", **terms) as ledger:
    run = ledger.run("example", plan=plan.fingerprint(), key=plan.secrets.commitment)
    for number, indices in enumerate(plan.batches(N)):
        rows = sizes.pad(indices)
        batch = (inputs[rows], labels[rows])
        w, noise_state = step(w, noise_state, batch, rows == -1, key)
        run.charge(*plan.charge(number, number + 1))  # before anything from this step is released
    spent = ledger.spent()

accuracy = np.mean((inputs @ np.asarray(w) > 0) == labels)
print(f"accuracy {accuracy:.2f}, clip norm {float(plan.clip_norm(noise_state)):.2f}")
print(f"epsilon {spent.epsilon:.3f} spent of {plan.budget}; {step._cache_size()} programs compiled")

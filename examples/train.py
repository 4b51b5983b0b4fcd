"""Stop a private run and resume it on another mesh, with the same model and one budget.

python examples/train.py
"""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

from bevel import DPSGDConfig  # noqa: E402
from bevel.accounting import Ledger  # noqa: E402
from bevel.report import write_report  # noqa: E402
from bevel.sharding import make_mesh  # noqa: E402
from bevel.training import RunOptions, Trainer  # noqa: E402

# Two clouds of points: one half to train on, the other half held out.
rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 4_000)
points = rng.normal(size=(4_000, 8)).astype(np.float32) + labels[:, None] - 0.5
train = {"x": points[:2_000], "y": labels[:2_000]}
held_out = {"x": points[2_000:], "y": labels[2_000:]}


def loss_fn(params, data, prng):
    logits = data["x"] @ params["w"] + params["b"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, data["y"]).mean()
    return loss, {"accuracy": (logits.argmax(-1) == data["y"]).mean()}


def evaluate(params):  # on held-out data, so the result may be released
    return {"held_out_accuracy": float(loss_fn(params, held_out, None)[1]["accuracy"])}


config = DPSGDConfig.default(num_examples=2_000, expected_batch_size=128, iterations=40)
config = config.calibrate(epsilon=2, delta=1e-5)
params = {"w": jnp.zeros((8, 2)), "b": jnp.zeros(2)}
folder = Path(tempfile.mkdtemp()) / "run"


def fit(mesh, callback=None):
    trainer = Trainer(
        config=config, loss_fn=loss_fn, optimizer=optax.sgd(1.0), mesh=make_mesh(mesh)
    )
    options = RunOptions(checkpoint_every=10, compilations=1)
    return trainer.fit(
        train, params, folder=folder, evaluate=evaluate, callback=callback, options=options
    )


fit("data=8", callback=lambda state, metrics: metrics["step"] == 20)
print("-- stopped; resuming on another mesh")
state = fit("data=4,model=2")

last = json.loads((folder / "released" / "metrics.jsonl").read_text().splitlines()[-1])
print(f"held-out accuracy {last['held_out_accuracy']:.3f} after {int(state.step)} steps")
print(Ledger.read(folder / "released" / "ledger.jsonl").spent().describe())
write_report(folder)
released = ", ".join(sorted(path.name for path in (folder / "released").iterdir()))
print(f"files that may be shown to anyone: {released}")

"""Ship a model with a privacy statement, verify it as a third party, and see a forgery fail."""

import json
import shutil
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

from bevel import DPSGDConfig, Trainer
from bevel.shipping import export, load, verify
from bevel.training import RunOptions

rng = np.random.default_rng(0)
x = rng.normal(size=(500, 4)).astype(np.float32)
data = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


def loss_fn(params, batch, prng):
    logits = batch["x"] @ params["dense"]["w"] + params["dense"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {}


# The owner trains a model, and exports it with a statement of what is promised about it.
folder = Path(tempfile.mkdtemp())
config = DPSGDConfig.default(num_examples=500, expected_batch_size=50, iterations=20)
trainer = Trainer(
    config=config.calibrate(epsilon=3, delta=1e-4), loss_fn=loss_fn, optimizer=optax.sgd(0.5)
)
params = {"dense": {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}}
options = RunOptions(checkpoint_every=10, compilations=1, progress=False, tensorboard=False)
trainer.fit(data, params, folder=folder / "run", options=options)
shipped = export(folder / "run", folder / "shipped", tuned="nothing")
print("exported:", ", ".join(sorted(path.name for path in shipped.iterdir())))

# Someone else has the files, and nothing else: `bevel verify shipped` prints the same.
result = verify(shipped)
print(result)

# They use the model. Loading checks that the files are those of the statement.
by_name, statement = load(shipped)
print("\nparameters:", {name: array.shape for name, array in by_name.items()})
tree = load(shipped, like=params).params
accuracy = ((x @ tree["dense"]["w"] + tree["dense"]["b"]).argmax(-1) == data["y"]).mean()
print(f"epsilon {statement.epsilon:.3f} at delta {statement.delta}, accuracy {accuracy:.1%}")

# A forger promises half of the epsilon.
forged = shutil.copytree(shipped, folder / "forged")
fields = json.loads((forged / "privacy.json").read_text())
fields["epsilon"] /= 2
(forged / "privacy.json").write_text(json.dumps(fields))
found = verify(forged)
print("\na forged statement fails:", [check.name for check in found.checks if not check.passed])
assert result.passed and not found.passed

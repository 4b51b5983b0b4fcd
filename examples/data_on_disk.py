"""Train from ArrayRecord files, which are too large for memory in practice.

Every step samples its batch from the whole data set, so the data needs random access to records.
ArrayRecord has it, and Grain decodes the records that are read.

python examples/data_on_disk.py
"""

import tempfile
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from array_record.python.array_record_module import ArrayRecordWriter

jax.config.update("jax_platforms", "cpu")

from bevel import DPSGDConfig  # noqa: E402
from bevel.training import RunOptions, Trainer  # noqa: E402

FEATURES = 8
folder = Path(tempfile.mkdtemp())

# Two files of 500 records each. A record is bytes: here the features, then the label.
rng = np.random.default_rng(0)
for number in range(2):
    writer = ArrayRecordWriter(str(folder / f"train-{number}.array_record"), "group_size:1")
    for _ in range(500):
        label = rng.integers(0, 2)
        features = rng.normal(size=FEATURES) + label - 0.5
        writer.write(np.append(features, label).astype(np.float32).tobytes())
    writer.close()


def decoded(record: bytes) -> dict[str, np.ndarray]:
    row = np.frombuffer(record, np.float32)
    return {"x": row[:FEATURES], "y": row[FEATURES].astype(np.int32)}


# Random access: no shuffle, no batch and no repeat. The plan samples the batches.
files = sorted(str(path) for path in folder.glob("*.array_record"))
records = grain.sources.ArrayRecordDataSource(files)
data = grain.MapDataset.source(records).map(decoded)


def loss_fn(params, data, prng):
    logits = data["x"] @ params["w"] + params["b"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, data["y"]).mean()
    return loss, {"accuracy": (logits.argmax(-1) == data["y"]).mean()}


config = DPSGDConfig.default(num_examples=len(data), expected_batch_size=64, iterations=20)
trainer = Trainer(
    config=config.calibrate(epsilon=3, delta=1e-4), loss_fn=loss_fn, optimizer=optax.sgd(1.0)
)
params = {"w": jnp.zeros((FEATURES, 2)), "b": jnp.zeros(2)}
state = trainer.fit(data, params, options=RunOptions(compilations=1, progress=False))
direction = np.asarray(state.params["w"][:, 1] - state.params["w"][:, 0])
print(f"{len(data):,} records in {len(files)} files; mean weight {direction.mean():.2f}")

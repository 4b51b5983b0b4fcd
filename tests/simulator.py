"""Replays a run from its noised sums: without the data, and without the keys.

`Recording` is a trainer that also writes the noised sums of each step, as raw values. `Simulating`
is one whose noise is what was recorded and whose gradients are zeros. What both write to
`released/` must be the same, byte for byte.
"""

import contextlib
import dataclasses
import functools
import hashlib
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from bevel.execution_plan import PlanSecrets
from bevel.noise_addition import gaussian_noise
from bevel.training import Trainer
from bevel.training.metrics_files import read_lines
from bevel.training.private_step import PrivateStep


class RecordingStep(PrivateStep):
    """Adds the noised sums to the raw metrics of a step, which are private."""

    def measured(self, *args):
        noised = []
        original = gaussian_noise.noised_step

        def recorded(*inputs):
            found, state = original(*inputs)
            noised[:] = found
            return found, state

        with mock.patch.object(gaussian_noise, "noised_step", recorded):
            new, seen = super().measured(*args)
        return new, seen | {f"noised/{k}": leaf for k, leaf in enumerate(noised)}


class SimulatingStep(PrivateStep):
    """Takes the noised sums of each step as they were recorded: `released_sums`, (steps, ...)."""

    def clip(self, *args):
        shapes = jax.eval_shape(super().clip, *args)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def measured(self, *args):
        def replayed(noise, specs, key, grads, state):
            found = [
                jnp.asarray(leaf)[state.step].astype(g.dtype)
                for leaf, g in zip(self.released_sums, grads, strict=True)
            ]
            buffers = jax.tree.map(jnp.zeros_like, state.buffers)
            return found, gaussian_noise.NoiseState(state.step + np.uint32(1), buffers)

        with mock.patch.object(gaussian_noise, "noised_step", replayed):
            return super().measured(*args)


def trainer_with(step_class):
    """A trainer class whose steps are of another class."""

    class Trained(Trainer):
        @functools.cached_property
        def step(self):
            step = super().step
            fields = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
            made = step_class(**fields)
            object.__setattr__(made, "released_sums", getattr(self, "released_sums", None))
            return made

    return Trained


Recording, Simulating = trainer_with(RecordingStep), trainer_with(SimulatingStep)


def recorded_sums(folder):
    """The noised sums of a run, a stack of all steps for each leaf."""
    rows = {row["step"]: row for row in read_lines(Path(folder) / "private" / "raw.jsonl")}
    names = sorted((n for n in rows[0] if n.startswith("noised/")), key=lambda n: int(n[7:]))
    steps = range(1 + max(rows))
    return [np.asarray([rows[step][name] for step in steps], np.float32) for name in names]


@contextlib.contextmanager
def commitments_of(folder):
    """What the ledger says by the secret key, which a simulator is given: it tells nothing."""
    lines = list(read_lines(Path(folder) / "released" / "ledger.jsonl"))[1:]
    entries = [line["entry"] for line in lines]
    (known,) = {entry["key"] for entry in entries}
    contents = {e.get("released", e["stop"]): e["content"] for e in entries}
    with (
        mock.patch.object(PlanSecrets, "commitment", known),
        mock.patch(
            "bevel.training.releaser.content_digest", lambda release, key: contents[release.stop]
        ),
    ):
        yield


def simulated(trainer, sums):
    """A trainer like the given one, that replays sums."""
    fields = {name: getattr(trainer, name) for name in trainer.__dataclass_fields__}
    made = Simulating(**fields)
    object.__setattr__(made, "released_sums", sums)
    return made


def files_of(folder):
    """Digests of all files under a folder, by their paths, and the times that they carry."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        what = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[name] = (what, path.stat().st_mtime)
    return found


def decoded(path):
    """The bytes of a file; of a chunk of an array, those that were compressed."""
    data = path.read_bytes()
    if data[:4] != b"\x28\xb5\x2f\xfd":
        return data
    import tensorstore

    store = {"driver": "file", "path": str(path.parent)}
    array = tensorstore.open({"driver": "zarr", "kvstore": store}).result()
    return np.asarray(array.read().result()).tobytes()

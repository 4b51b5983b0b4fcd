"""Traces of noise, raw values and secrets are found in released files, and named."""

import json
import shutil

import jax
import numpy as np
import pytest
import training_runs as runs

from bevel.auditing import released_traces
from bevel.auditing.traces import Trace
from bevel.errors import FixArgumentsError
from bevel.training.secrets import read_secrets


@pytest.fixture(name="honest", scope="module")
def fixture_honest(tmp_path_factory):
    """A run with correlated noise, whose private half has buffers."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    state = runs.fit(folder, of=runs.trainer(config=runs.BANDMF.make()))
    return folder, [np.asarray(x) for x in jax.tree.leaves(state.noise_state) if x.ndim > 1]


@pytest.fixture(name="folder")
def fixture_folder(honest, tmp_path):
    return shutil.copytree(honest[0], tmp_path / "run")


def test_an_honest_run_has_none(folder):
    assert released_traces(folder) == ()


@pytest.mark.parametrize("scale", [1.0, -0.25])
def test_noise_is_found_at_any_scale(folder, honest, scale):
    noise = max(honest[1], key=lambda x: x.size)
    np.savez(folder / "released" / "extra.npz", fine=np.arange(8.0), ring=scale * noise)
    (trace,) = released_traces(folder)
    assert (trace.file, trace.entry) == ("extra.npz", "ring")
    assert "noise buffers" in trace.what


def test_noise_among_other_values_is_not_a_combination(folder, honest):
    noise = max(honest[1], key=lambda x: x.size)
    protected = noise + 0.1 * np.random.default_rng(0).normal(size=noise.shape)
    np.save(folder / "released" / "sum.npy", protected)
    assert released_traces(folder) == ()


def test_raw_values_are_found_in_all_json(folder):
    raw = json.loads((folder / "private" / "raw.jsonl").read_text().splitlines()[0])
    (folder / "released" / "note.json").write_text(json.dumps({"a": [1.5, raw["loss"]]}))
    (trace,) = released_traces(folder)
    assert trace == Trace("note.json", "a.1", "equal to the raw value of loss")
    assert str(trace) == "note.json, a.1: equal to the raw value of loss"


@pytest.mark.parametrize("form", ["bytes", "text", "seed"])
def test_secrets_are_found(folder, form):
    secrets = read_secrets(folder / "private" / "secrets.json")
    forms = {"bytes": secrets.root, "text": secrets.root.hex().encode()}
    content = forms.get(form, str(secrets.sampling_seed).encode())
    (folder / "released" / "log").write_bytes(b"abc" + content)
    (trace,) = released_traces(folder)
    assert (trace.file, trace.entry) == ("log", "byte 3")


def test_the_released_half_alone_is_refused(folder):
    shutil.rmtree(folder / "private")
    with pytest.raises(FixArgumentsError, match="has no private/: pass the folder of a run"):
        released_traces(folder)

"""Traces of noise, raw values and secrets are found in released files, and named."""

import shutil

import numpy as np
import pytest
import training_runs as runs

from bevel.auditing import released_traces
from bevel.errors import FixArgumentsError
from bevel.training.secrets import read_secrets


@pytest.fixture(name="honest", scope="module")
def fixture_honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    plan = runs.BANDMF.make(secrets=runs.PlanSecrets.for_tests(1))  # its raw values have 9 digits
    state = runs.fit(folder, of=runs.trainer(config=plan))
    return folder, np.asarray(state.noise_state.buffers[1]["ring"])


@pytest.fixture(name="folder")
def fixture_folder(honest, tmp_path):
    return shutil.copytree(honest[0], tmp_path / "run")


def test_an_honest_run_has_none(folder):
    assert released_traces(folder) == ()


def test_noise_and_numbers_are_found(folder, honest):
    np.savez(folder / "released" / "extra.npz", fine=np.arange(8.0), ring=2 * honest[1])
    raw = (folder / "private" / "raw.jsonl").read_text().splitlines()[0]
    (folder / "released" / "note.json").write_text(raw)
    found = released_traces(folder)
    assert [(trace.file, trace.entry) for trace in found][:1] == [("extra.npz", "ring")]
    assert {"accuracy", "loss", "signal_to_noise"} < {trace.entry for trace in found[1:]}


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

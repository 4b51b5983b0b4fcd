"""Raw values and summaries of the noise are found among released numbers."""

import json

import numpy as np
import pytest
import traced_runs as runs

from bevel.auditing.number_traces import number_traces


@pytest.fixture(name="honest", scope="module")
def fixture_honest(tmp_path_factory):
    return runs.run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(name="folder")
def fixture_folder(honest, tmp_path):
    return runs.copy(honest, tmp_path)


def test_an_honest_run_has_none(folder):
    assert list(number_traces(folder)) == []


def test_raw_values_are_found_in_all_json(folder):
    raw = json.loads((folder / "private" / "raw.jsonl").read_text().splitlines()[1])
    (folder / "released" / "note.json").write_text(json.dumps({"a": [1.5, raw["loss"]]}))
    (trace,) = number_traces(folder)
    assert (trace.file, trace.entry) == ("note.json", "a.1")
    assert trace.what == "equal to the raw value of loss"


SUMMARIES = {
    "the norm of a noise buffer": lambda noise: np.linalg.norm(noise[0]),
    "the sum of a noise buffer": lambda noise: -noise[0].sum(),
    "the mean of a noise buffer": lambda noise: noise[0].mean(),
    "the standard deviation of a noise buffer": lambda noise: noise[0].std(),
    "the norm of the noise buffers": lambda noise: np.linalg.norm(np.stack(noise)),
}


@pytest.mark.parametrize("what", SUMMARIES)
@pytest.mark.parametrize("place", ["json", "array"])
def test_summaries_of_the_noise_are_found(folder, what, place):
    value = float(SUMMARIES[what]([x.astype(np.float64) for x in runs.buffers(folder)]))
    if place == "json":
        (folder / "released" / "note.json").write_text(json.dumps({"gradient": {"norm": value}}))
        expected = ("note.json", "gradient.norm")
    else:
        np.save(folder / "released" / "norm.npy", np.float32(value))
        expected = ("norm.npy", "array")
    (trace,) = number_traces(folder)
    assert (trace.file, trace.entry) == expected
    assert trace.what == f"equal to {what} of the run"


def test_numbers_that_agree_in_four_digits_are_not_a_trace(folder):
    value = float(np.linalg.norm(runs.buffers(folder)[0].astype(np.float64)))
    (folder / "released" / "note.json").write_text(json.dumps({"x": value * (1 + 1e-4)}))
    assert list(number_traces(folder)) == []

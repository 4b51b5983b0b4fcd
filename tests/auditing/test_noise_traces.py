"""Noise is found in released arrays in every linear disguise, and sums with noise are not."""

import ml_dtypes
import numpy as np
import pytest
import traced_runs as runs

from bevel.auditing.noise_traces import FALSE_ALARM, is_combination, noise_traces


@pytest.fixture(name="honest", scope="module")
def fixture_honest(tmp_path_factory):
    return runs.run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(name="folder")
def fixture_folder(honest, tmp_path):
    return runs.copy(honest, tmp_path)


def test_a_parameter_with_zero_gradients_is_no_false_alarm(folder):
    """Its optimizer state is a combination of noise buffers, exactly: the sums add nothing."""
    assert list(noise_traces(folder)) == []
    noise = runs.buffers(folder)
    assert len(noise) == 2 and noise[0].any()


RNG = np.random.default_rng(0)
DISGUISES = {
    "copied": lambda a, b: a,
    "scaled": lambda a, b: -0.25 * a,
    "shifted": lambda a, b: 3.0 + a,
    "float16": lambda a, b: a.astype(np.float16),
    "bfloat16 in float32": lambda a, b: a.astype(ml_dtypes.bfloat16).astype(np.float32),
    "covered by 0.3% of other noise": lambda a, b: a + 0.003 * a.std() * RNG.normal(size=a.shape),
    "one row": lambda a, b: a[0],
    "summed over rows": lambda a, b: a.sum(axis=0),
    "summed over leaves": lambda a, b: a[0] + 2 * b[0],
    "another shape": lambda a, b: a.ravel()[::-1][::-1].reshape(-1, 4),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_noise_is_found(folder, disguise):
    hidden = DISGUISES[disguise](*(x.astype(np.float64) for x in runs.buffers(folder)))
    np.savez(folder / "released" / "extra.npz", fine=np.arange(96.0) ** 2, ring=hidden)
    (trace,) = noise_traces(folder)
    assert (trace.file, trace.entry.split("[")[0]) == ("extra.npz", "ring")
    assert "noise buffers" in trace.what


def test_noise_that_still_protects_something_is_not_a_trace(folder):
    noise = runs.buffers(folder)[0][0].astype(np.float64)
    protected = noise + 0.1 * noise.std() * RNG.normal(size=noise.shape)
    np.save(folder / "released" / "sum.npy", protected)
    assert list(noise_traces(folder)) == []


def test_false_alarms_are_as_rare_as_stated():
    """The chance of a fit, from the incomplete beta function, is the share of fits by chance."""
    rng = np.random.default_rng(1)
    size, vectors, trials = 8, 4, 4_000
    found = [
        is_combination(
            rng.normal(size=size), list(rng.normal(size=(vectors, size))), 1, tolerance=1.0
        )
        for _ in range(trials)
    ]
    assert sum(found) == 0  # each has a probability of at most 5e-6
    loose = FALSE_ALARM * 1e5  # a probability of 0.1 for each of the five fits
    rate = np.mean([
        is_combination(
            rng.normal(size=size), list(rng.normal(size=(vectors, size))),
            FALSE_ALARM / loose, tolerance=1.0,
        )
        for _ in range(trials)
    ])  # fmt: skip
    assert 0.1 < rate < 0.5


def test_few_numbers_are_never_a_trace():
    noise = [np.array([1.0, 2.0, 4.0])]
    assert not is_combination(2 * noise[0], noise, 1, 0.05)
    assert not is_combination(np.full(50, 3.0), [np.arange(50.0)], 1, 0.05)
    assert not is_combination(np.full(50, np.nan), [np.arange(50.0)], 1, 0.05)
    assert is_combination(2 * np.arange(50.0) + 1, [np.arange(50.0)], 1, 0.05)


def test_large_arrays_are_sampled():
    noise = np.random.default_rng(0).normal(size=300_000)
    sampled = noise[np.random.default_rng(0).integers(0, noise.size, 100_000)]
    assert is_combination(noise.astype(np.float32), [sampled], 1, 1e-5)

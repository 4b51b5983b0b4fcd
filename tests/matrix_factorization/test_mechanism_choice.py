"""Every number in the table of choose_mechanism, compared with its matrix."""

import jax
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import (
    Candidate,
    calibration,
    choose_mechanism,
    sensitivity,
    tree_aggregation,
)
from bevel.matrix_factorization.mechanism_choice import chosen_and_best, doubling

N, TIMES, PARAMS = 24, 3, 100


@pytest.fixture(scope="module", name="choice")
def fixture_choice():
    return choose_mechanism(N, TIMES, 2 * 4 * PARAMS, params_per_device=PARAMS)


def matrices(candidate, n=N):
    """C and the decoder A C^-1 of a candidate, dense."""
    with jax.enable_x64(True):
        noising = np.asarray(candidate.noising_matrix().materialize(n))
    return np.linalg.inv(noising), np.tril(np.ones((n, n))) @ noising


def test_every_row_has_the_noise_and_error_of_its_matrix(choice):
    seen = set()
    for c in choice.candidates:
        if c.name == "tree aggregation":
            continue
        seen.add(c.name)
        C, decoder = matrices(c)
        bound = sensitivity.get_min_sep_sensitivity_upper_bound(C, N // TIMES, TIMES)
        # Equal privacy: noise is proportional to the sensitivity.
        assert c.stddev == pytest.approx(bound, rel=1e-6)
        error = c.stddev * np.sqrt((decoder**2).sum(1).mean())
        assert c.error == pytest.approx(error, rel=1e-6)
    assert seen == {"DP-SGD", "BandMF", "BLT", "BISR"}


def test_noise_states_have_the_stated_size(choice):
    for c in choice.candidates:
        if c.name == "tree aggregation":
            continue
        state = c.noising_matrix().init_multiply(jax.ShapeDtypeStruct((PARAMS,), "float32"))
        buffers = [x for x in jax.tree.leaves(state) if x.ndim > 0]
        assert sum(x.nbytes for x in buffers) == c.state_bytes == 4 * PARAMS * c.buffers
        assert c.state_bytes <= 2 * 4 * PARAMS


def test_the_smallest_error_that_fits_is_chosen(choice):
    errors = [c.error for c in choice.candidates]
    assert errors == sorted(errors)
    runnable = [c for c in choice.candidates if c.name != "tree aggregation"]
    best = min(c.error for c in runnable)
    assert choice.chosen.error <= 1.01 * best
    for c in runnable:
        if c.error <= 1.01 * best:
            assert choice.chosen.state_bytes <= c.state_bytes


def test_a_smaller_state_is_chosen_within_the_tolerance():
    def row(error, state_bytes):
        return Candidate("BLT", "", 0, state_bytes, error, 1.0, "")

    best, near, far = row(1.0, 30), row(1.009, 20), row(1.02, 0)
    for tolerance, expected in ((0.0, best), (0.01, near), (0.03, far)):
        assert chosen_and_best([far, best, near], tolerance) == (expected, best)
    same = row(1.0, 20)
    assert chosen_and_best([best, same], 0.0)[0] is same


def test_the_baseline_is_in_the_table(choice):
    (tree,) = [c for c in choice.candidates if c.name == "tree aggregation"]
    squared = tree_aggregation.sensitivity_squared(N, N // TIMES, TIMES)
    mean = tree_aggregation.per_query_error(N).mean()
    assert tree.error == pytest.approx(np.sqrt(squared * mean))
    with pytest.raises(FixArgumentsError, match="baseline"):
        tree.noising_matrix()


def test_the_choice_is_explained(choice):
    text = str(choice)
    assert choice.why in text and f"* {choice.chosen.name}" in text
    assert choice.chosen.name in choice.why
    for name in {"DP-SGD", "BandMF", "BLT", "BISR"} - {choice.chosen.name}:
        assert f"{name} (" in choice.why and "times its error" in choice.why
    assert "2 copies of the gradient fit" in choice.why
    assert "8 steps apart" in choice.why
    for c in choice.candidates:
        assert c.detail in text


def test_without_memory_the_noise_is_independent():
    choice = choose_mechanism(N, TIMES, 4 * PARAMS - 1, params_per_device=PARAMS)
    assert (choice.chosen.name, choice.chosen.state_bytes) == ("DP-SGD", 0)
    assert choice.chosen.stddev == pytest.approx(np.sqrt(TIMES))
    assert choice.chosen.error == pytest.approx(np.sqrt(TIMES * (N + 1) / 2))
    assert "no copy of the gradient fits" in choice.why


def test_the_largest_error():
    choice = choose_mechanism(N, 1, 0, params_per_device=PARAMS, error="max")
    assert choice.chosen.error == pytest.approx(np.sqrt(N))
    assert "each example once" in choice.why


def test_amplification_is_credited_where_it_is_proven(monkeypatch):
    monkeypatch.setattr(
        calibration, "poisson_noise_multiplier", lambda e, d, prob, steps: prob * np.sqrt(steps)
    )
    memory = 4 * PARAMS
    choice = choose_mechanism(N, TIMES, memory, params_per_device=PARAMS, epsilon=1.0, delta=1e-5)
    noise = calibration.gaussian_noise_multiplier(1.0, 1e-5)
    rows = {(c.name, c.sampling.split(",")[0]): c for c in choice.candidates}
    assert set(rows) == {
        ("DP-SGD", "Poisson"),
        ("DP-SGD", "each example at most 3 times"),
        ("BandMF", "cyclic Poisson"),
        ("BandMF", "each example at most 3 times"),
        ("BLT", "each example at most 3 times"),
        ("BISR", "each example at most 3 times"),
        ("tree aggregation", "each example at most 3 times"),
    }
    plain = rows["DP-SGD", "each example at most 3 times"]
    assert plain.stddev == pytest.approx(noise * np.sqrt(TIMES))
    assert rows["DP-SGD", "Poisson"].stddev == pytest.approx(TIMES / N * np.sqrt(N))
    banded = rows["BandMF", "cyclic Poisson"]
    assert banded.stddev == pytest.approx(2 * TIMES / N * np.sqrt(N / 2))
    _, decoder = matrices(banded)
    assert banded.error == pytest.approx(banded.stddev * np.sqrt((decoder**2).sum(1).mean()))
    C, _ = matrices(rows["BLT", "each example at most 3 times"])
    bound = sensitivity.get_min_sep_sensitivity_upper_bound(C, N // TIMES, TIMES)
    blt = rows["BLT", "each example at most 3 times"]
    assert blt.stddev == pytest.approx(noise * bound, rel=1e-6)


def test_bands_double_up_to_the_limit():
    assert doubling(2, 1) == []
    assert doubling(2, 2) == [2]
    assert doubling(2, 5) == [2, 4, 5]
    assert doubling(2, 8) == [2, 4, 8]


GOOD = {"n": 10, "participations": 2, "memory_per_device": 0, "params_per_device": 1}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n": 0}, "n=0"),
        ({"participations": 0}, "participations=0"),
        ({"participations": 11}, "only n=10 steps"),
        ({"memory_per_device": -1}, "memory_per_device"),
        ({"params_per_device": 0}, "params_per_device"),
        ({"min_sep": 0}, "min_sep"),
        ({"min_sep": 10}, "only 1 fit"),
        ({"error": "sum"}, "'mean' or 'max'"),
        ({"epsilon": 1.0}, "pass both or neither"),
        ({"epsilon": -1.0, "delta": 1e-5}, "positive epsilon"),
        ({"tolerance": -0.1}, "tolerance"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(FixArgumentsError, match=message):
        choose_mechanism(**(GOOD | change))

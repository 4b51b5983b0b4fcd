"""The noise over a run falls with the batch size to that of a run without sampling."""

import math

import pytest
from scipy.stats import norm

from bevel.choosing.noise_curve import NoiseCurve, NoisePoint, least_noise, noise_curve, steps_of
from bevel.execution_plan import DPSGDConfig

EPSILON, DELTA, UNITS = 3.0, 1e-4, 512


def calibrated(batch_size, steps):
    config = DPSGDConfig.default(UNITS, batch_size, steps)
    return config.calibrate(epsilon=EPSILON, delta=DELTA).noise_multiplier


def gaussian_delta(mu, epsilon):
    """The exact delta of a Gaussian mechanism (Balle and Wang 2018, theorem 8)."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_the_least_noise_is_that_of_one_gaussian_mechanism():
    mu = 1 / (least_noise(UNITS, EPSILON, DELTA, "ADD_OR_REMOVE_ONE") * UNITS)
    assert gaussian_delta(mu, EPSILON) == pytest.approx(DELTA, rel=0.02)


def test_replacing_a_record_takes_twice_the_noise():
    one, two = (
        least_noise(UNITS, EPSILON, DELTA, relation)
        for relation in ("ADD_OR_REMOVE_ONE", "REPLACE_ONE")
    )
    assert two == pytest.approx(2 * one, rel=1e-3)


@pytest.mark.parametrize("workload", [{"epochs": 8.0}, {"steps": 32}], ids=["epochs", "steps"])
def test_noise_over_the_run_falls_to_the_least(workload):
    least = least_noise(UNITS, EPSILON, DELTA, "ADD_OR_REMOVE_ONE")
    curve = noise_curve(calibrated, UNITS, least, **workload)
    sizes = [point.batch_size for point in curve.points]
    assert sizes == sorted(set(sizes)) and sizes[-1] == UNITS
    excess = [curve.excess(point) for point in curve.points]
    assert excess == sorted(excess, reverse=True)
    assert excess[0] > 0.2
    assert excess[-1] == pytest.approx(0, abs=0.01)  # all examples in every step
    for point in curve.points:
        assert point.steps == (workload.get("steps") or steps_of(8, UNITS, point.batch_size))
        assert point.noise_multiplier == calibrated(point.batch_size, point.steps)


def test_the_noise_of_a_point():
    point = NoisePoint(batch_size=8, steps=25, noise_multiplier=2.0)
    assert (point.noise_per_step, point.noise_over_run) == (0.25, 0.05)
    assert NoiseCurve((point,), least=0.04, epochs=1).excess(point) == pytest.approx(0.25)


def test_there_is_at_least_one_step():
    assert (steps_of(2, 100, 10), steps_of(0.01, 100, 100)) == (20, 1)

"""The learning rate falls with the steps and with the noise."""

import math

import pytest

from bevel.choosing.learning_rate import DISTANCE, learning_rate_for, noise_norm
from bevel.choosing.noise_curve import NoisePoint

POINT = NoisePoint(batch_size=10, steps=100, noise_multiplier=1.0)


def test_the_noise_of_a_step_has_this_norm():
    assert noise_norm(POINT, 400) == pytest.approx(2.0)


def test_without_noise_the_movements_add_up_to_the_distance():
    rate = learning_rate_for(NoisePoint(10, 100, 1e-9), 400, momentum=0.0)
    assert rate * math.sqrt(100) == pytest.approx(DISTANCE, rel=0.3)


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ({"steps": 10_000}, 1 / 10),
        ({"noise_multiplier": 10.0}, math.sqrt(5 / 401)),
        ({"batch_size": 1}, math.sqrt(5 / 401)),
    ],
)
def test_more_steps_and_more_noise_need_a_smaller_rate(change, factor):
    changed = NoisePoint(**{**vars(POINT), **change})
    ratio = learning_rate_for(changed, 400) / learning_rate_for(POINT, 400)
    assert ratio == pytest.approx(factor, rel=0.3)  # one digit is kept


def test_momentum_multiplies_every_movement():
    plain, heavy = (learning_rate_for(POINT, 400, momentum=m) for m in (0.0, 0.9))
    assert heavy == pytest.approx(plain / 10, rel=0.3)


def test_adam_does_not_depend_on_the_noise():
    noisy = NoisePoint(batch_size=10, steps=100, noise_multiplier=50.0)
    rates = {learning_rate_for(point, 400, "adam") for point in (POINT, noisy)}
    assert len(rates) == 1
    assert rates.pop() == pytest.approx(DISTANCE / math.sqrt(100 * 400), rel=0.3)


def test_an_unknown_number_of_parameters_stands_for_noise_as_large_as_the_gradient():
    assert learning_rate_for(POINT, None) == learning_rate_for(POINT, 100)  # 0.1 * sqrt(100) = 1
    assert 0 < learning_rate_for(POINT, None, "dp_adam") < 1

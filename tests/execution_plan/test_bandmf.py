"""BandMF has as many groups as bands."""

import dataclasses
import functools

import numpy as np
import pytest
from plans import CONFIGS, plan

from bevel.accounting import amplified_bandmf_event
from bevel.batch_selection import PartitionType
from bevel.errors import FixArgumentsError
from bevel.execution_plan import AdaptiveClipping, BandMFConfig


@functools.cache
def default_config():
    return BandMFConfig.default(2, 12, 2.0, strategy_optimization_steps=5, num_examples=60)


def test_default_optimizes_as_many_bands():
    config = default_config()
    assert config.num_bands == 2 and config.noise_multiplier is None
    assert config.sampling_prob == pytest.approx(2.0 * 2 / 12)
    assert config.batch_size() == pytest.approx(10)


def test_calibrated_it_has_the_event_of_bandmf():
    config = default_config().calibrate(epsilon=4.0, delta=1e-3)
    made = config.make()
    noise = config.noise_multiplier
    assert made.dp_event == amplified_bandmf_event(noise, 12, num_bands=2, sampling_prob=1 / 3)
    assert 3.999 <= made.epsilon() <= 4.0
    assert config.rmse == pytest.approx(made.rmse)


def test_the_error_is_that_of_the_noise_in_the_sums():
    config = dataclasses.replace(CONFIGS["bandmf"], normalize_by=4.0, l2_clip_norm=3.0)
    column = np.asarray(config.strategy)
    matrix = sum(c * np.eye(12, k=-k) for k, c in enumerate(column))
    sums = np.tril(np.ones((12, 12))) @ np.linalg.inv(matrix)
    stddev = 1.5 * np.linalg.norm(column) / 4
    assert config.rmse == pytest.approx(stddev * np.sqrt(np.mean(np.sum(sums**2, axis=1))))
    unscaled = dataclasses.replace(config, rescale_to_unit_norm=False)
    assert unscaled.rmse == pytest.approx(3 * config.rmse)
    with pytest.raises(FixArgumentsError, match="calibrate"):
        _ = dataclasses.replace(config, noise_multiplier=None).rmse


def test_an_example_rests_for_as_many_steps_as_there_are_bands():
    made = plan("bandmf")
    uses = np.zeros((12, 60), bool)
    for step, batch in enumerate(made.batches(60)):
        uses[step, batch] = True
    gaps = [np.diff(np.flatnonzero(column)) for column in uses.T]
    assert min(gap.min() for gap in gaps if gap.size) >= 3 == CONFIGS["bandmf"].num_bands


def test_the_number_of_examples_may_come_later():
    config = dataclasses.replace(CONFIGS["bandmf"], num_examples=None)
    made = config.make()
    assert made.expected_batch_size is None and made.dp_event == plan("bandmf").dp_event
    assert "not known: pass num_examples" in str(made)
    with pytest.raises(FixArgumentsError, match="num_examples"):
        made.padded_sizes()
    assert made.batch(0, 40).max() < 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expected_participations": 5.0}, "at most 4"),
        ({"expected_participations": 0.0}, "expected_participations=0.0"),
        ({"strategy": [0.0, 1.0]}, "first column"),
        ({"strategy": np.ones(13), "expected_participations": 0.5}, "13 bands"),
        ({"num_examples": None, "truncated_batch_size": 5}, "needs num_examples"),
        ({"num_examples": 2}, "leaves every group empty"),
        ({"neighboring_relation": "REPLACE_ONE"}, "no guarantee is proven"),
        (
            {"partition_type": PartitionType.INDEPENDENT, "truncated_batch_size": 5},
            "INDEPENDENT groups",
        ),
        ({"sampling": "poisson"}, "sampling='poisson'"),
        ({"sampling": "balls_in_bins", "column_normalize": True}, "Leave them out"),
        ({"sampling": "balls_in_bins", "expected_participations": 5.0}, "an integer"),
        ({"adaptive_clipping": "on"}, "pass AdaptiveClipping"),
        ({"num_examples": None, "adaptive_clipping": AdaptiveClipping()}, "is not known: pass"),
    ],
    ids=str,
)
def test_bad_fields_say_what_to_write(change, message):
    with pytest.raises(FixArgumentsError, match=message):
        dataclasses.replace(CONFIGS["bandmf"], **change).make().batch(0, 2)


def test_more_bands_than_steps_are_refused():
    with pytest.raises(FixArgumentsError, match="pass at most 3"):
        BandMFConfig.default(4, 3, 1.0)


def test_options_are_keywords_because_jax_privacy_orders_them_differently():
    with pytest.raises(TypeError, match="positional"):
        BandMFConfig(12, 2.0, (1.0,), 1.5)

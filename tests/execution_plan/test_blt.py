"""BLT: only samplers with a minimum separation between two uses of an example."""

import dataclasses
import functools

import numpy as np
import pytest
from plans import CONFIGS, STEPS, N, plan

from bevel.accounting import gaussian_event
from bevel.errors import FixArgumentsError
from bevel.execution_plan import BLTConfig


@functools.cache
def default_config():
    return BLTConfig.default(60, 10, 12, max_buffers=1)


def test_default_separates_by_an_epoch():
    config = default_config()
    assert config.min_sep == 6 and len(config.buf_decay) == 1
    assert config.sampler().participation().max_participations == 2


def test_it_is_one_gaussian_mechanism_without_amplification():
    config = default_config().calibrate(epsilon=4.0, delta=1e-3)
    made = config.make()
    assert made.dp_event == gaussian_event(config.noise_multiplier)
    sensitivity = made.mechanism.sensitivity(12)
    assert made.noise_stddev == pytest.approx(config.noise_multiplier * sensitivity / 10, rel=1e-6)


@pytest.mark.parametrize("name", ["blt", "blt_cyclic", "blt_balls_in_bins"])
def test_the_sampler_keeps_what_the_sensitivity_was_computed_for(name):
    made = plan(name)
    allowed = made.mechanism.sampler.participation()
    uses = np.zeros((STEPS, N), bool)
    sizes = []
    for step, batch in enumerate(made.batches(N)):
        uses[step, batch] = True
        sizes.append(len(batch))
    gaps = [np.diff(np.flatnonzero(column)) for column in uses.T]
    assert min(gap.min() for gap in gaps if gap.size) >= allowed.min_separation == 4
    assert uses.sum(axis=0).max() <= allowed.max_participations == 3
    assert abs(np.mean(sizes) - made.expected_batch_size) < 3


def test_batches_can_start_at_any_step():
    made = plan("blt")
    for one, other in zip(made.batches(N, first=5), list(made.batches(N))[5:], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(made.batch(5, N), next(made.batches(N, first=5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expected_batch_size": 16}, "at most 15"),
        ({"min_sep": 0}, "min_sep=0"),
        ({"sampling": "poisson"}, "have no minimum separation"),
        ({"sampling": "balls_in_bins"}, "Pass expected_batch_size=15"),
        ({"output_scale": (0.1,)}, "one number for each buffer"),
        ({"sampling": "cyclic_poisson"}, "no guarantee is proven"),
    ],
    ids=str,
)
def test_bad_fields_say_what_to_write(change, message):
    with pytest.raises(FixArgumentsError, match=message):
        dataclasses.replace(CONFIGS["blt"], **change)

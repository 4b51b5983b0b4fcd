"""Padding to multiples: every batch fits, and the mesh and microbatches divide it."""

import dataclasses

import numpy as np
import pytest
from plans import CONFIGS

from bevel.batch_selection import PaddedSizes
from bevel.errors import FixArgumentsError
from bevel.execution_plan import PerformanceFlags
from bevel.training import PadToMultiple
from bevel.training.compilation import padded_sizes_of


@pytest.mark.parametrize("microbatch, parts, multiple", [(None, 1, 6), (4, 1, 12), (4, 8, 24)])
def test_batches_are_padded_to_the_next_multiple(microbatch, parts, multiple):
    plan = CONFIGS["dpsgd"].make(PerformanceFlags(microbatch_size=microbatch))
    sizes = PadToMultiple(6).sizes(plan, parts)
    for size in range(60):
        padded = sizes.pad(np.arange(size))
        assert len(padded) == max(1, -(-size // multiple)) * multiple
    (ahead,) = sizes.sizes
    assert ahead % multiple == 0 and 0 <= ahead - plan.expected_batch_size < multiple


def test_the_sizes_of_a_trainer():
    plan, given = CONFIGS["dpsgd"].make(), PaddedSizes((8, 16))
    assert padded_sizes_of(plan, given, 1, 3) is given
    assert padded_sizes_of(plan, None, 1, 3) == plan.padded_sizes(count=3)
    assert padded_sizes_of(plan, PadToMultiple(4), 2, 3).size_for(5) == 8


def test_an_unknown_batch_size_is_padded_to_multiples():
    class Unknown:
        expected_batch_size, flags = None, PerformanceFlags()

    sizes = padded_sizes_of(Unknown(), None, 1, 3)
    assert [sizes.size_for(n) for n in (0, 1, 32, 33)] == [32, 32, 32, 64]
    assert dataclasses.is_dataclass(sizes)


@pytest.mark.parametrize("multiple", [0, -1, 2.5])
def test_the_multiple_is_a_positive_integer(multiple):
    with pytest.raises(FixArgumentsError, match="multiple="):
        PadToMultiple(multiple)

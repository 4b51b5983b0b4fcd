"""Padded sizes follow the distribution of batch sizes."""

from plans import plan

from bevel.batch_selection import CyclicPoissonSampling
from bevel.execution_plan.batch_sizes import sizes_for


def test_padded_sizes_fit_truncated_and_fixed_batches():
    sizes = plan("truncated").padded_sizes(multiple=4).sizes
    assert sizes == (12,) and plan("fixed").padded_sizes().sizes == (10,)
    assert all(size % 4 == 0 for size in plan("dpsgd").padded_sizes(multiple=4).sizes)


def test_the_truncated_size_is_the_largest_padded_size():
    sampler = CyclicPoissonSampling(0.5, 3, truncated_batch_size=110)
    assert sizes_for(sampler, 100.0, None, 1, 6).sizes == (110,)
    assert sizes_for(sampler, 80.0, None, 8, 6).sizes == (96, 104, 112)


def test_no_padded_size_is_above_the_number_of_examples():
    sampler = CyclicPoissonSampling(0.5, 3)
    assert sizes_for(sampler, 6.0, None, 1, 3).sizes == (11, 16, 21)
    assert sizes_for(sampler, 6.0, 12, 1, 3).sizes == (11, 12)
    assert sizes_for(sampler, 6.0, 12, 8, 3).sizes == (16,)
    assert sizes_for(sampler, 6.0, 21, 1, 3).sizes == (11, 16, 21)

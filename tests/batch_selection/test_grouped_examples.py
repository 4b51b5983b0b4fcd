"""Groups that are stored: the members of each label, in order."""

import numpy as np
import pytest

from bevel.batch_selection.grouped_examples import grouped, index_dtype


@pytest.mark.parametrize("count", [1, 3, 40, 2**15, 2**17])
def test_groups_from_labels(count):
    labels = np.random.default_rng(0).integers(count, size=500)
    groups = grouped(labels, count)
    for g in {0, count - 1, *labels[:20].tolist()}:
        assert groups.of(g).tolist() == np.flatnonzero(labels == g).tolist()


def test_indices_use_the_smallest_dtype():
    assert index_dtype(2**31 - 1) == np.int32 and index_dtype(2**31) == np.int64
    assert grouped(np.array([0, 1, 0]), 2).members.dtype == np.int32

"""Names, order and defaults of the fields are those of JAX Privacy."""

import dataclasses
import inspect

import pytest

import bevel
from bevel import batch_selection
from bevel.batch_selection import PartitionType

REQUIRED = dataclasses.MISSING
FIELDS = {
    "CyclicPoissonSampling": {
        "sampling_prob": REQUIRED,
        "iterations": REQUIRED,
        "truncated_batch_size": None,
        "cycle_length": 1,
        "partition_type": PartitionType.EQUAL_SPLIT,
    },
    "BallsInBinsSampling": {"iterations": REQUIRED, "cycle_length": REQUIRED},
    "RandomAllocationSampling": {"total_participations": REQUIRED, "iterations": REQUIRED},
    "FixedBatchSampling": {"batch_size": REQUIRED, "iterations": REQUIRED, "replace": False},
    "BMinSepSampling": {
        "sampling_prob": REQUIRED,
        "iterations": REQUIRED,
        "min_sep": REQUIRED,
        "warm_start": True,
        "truncated_batch_size": None,
    },
    "UserSelectionStrategy": {
        "base_strategy": REQUIRED,
        "examples_per_user_per_batch": 1,
        "shuffle_per_user": False,
    },
}
FUNCTIONS = {
    "pad_to_multiple_of": ["indices", "multiple", "microbatch_size"],
    "split_and_pad_global_batch": ["indices", "minibatch_size", "microbatch_size"],
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name):
    fields = dataclasses.fields(getattr(batch_selection, name))
    assert [(f.name, f.default) for f in fields] == list(FIELDS[name].items())
    first = "user_ids" if name == "UserSelectionStrategy" else "num_examples"
    iterator = inspect.signature(getattr(batch_selection, name).batch_iterator)
    assert list(iterator.parameters) == ["self", first, "rng"]
    assert iterator.parameters["rng"].default is None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    assert list(inspect.signature(getattr(batch_selection, name)).parameters) == FUNCTIONS[name]


def test_the_package_is_public():
    assert bevel.batch_selection is batch_selection
    assert {kind.name for kind in PartitionType} == {"INDEPENDENT", "EQUAL_SPLIT"}

"""A fingerprint depends on the guarantee and the released numbers, and on nothing else."""

import dataclasses
import enum

import numpy as np
import pytest
from plans import CONFIGS, plan

from bevel.errors import FixArgumentsError
from bevel.execution_plan import AdaptiveClipping, PerformanceFlags, PlanSecrets
from bevel.execution_plan.fingerprint import fingerprint
from bevel.noise_addition import SupportedStrategies


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Pair:
    left: object
    right: object = None


VALUES = [
    *(None, True, 1, 1.0, 1.0 + 2**-52, np.inf, "1", "one"),
    *((1,), (1, 2), ((1,), 2), Colour.RED, Colour.BLUE, Pair(1), Pair(1.0), Pair(None, 1)),
]


def test_different_values_have_different_fingerprints():
    assert len({fingerprint(value) for value in VALUES}) == len(VALUES)


def test_numpy_numbers_are_the_numbers_that_they_hold():
    assert fingerprint(Pair(np.float64(0.5), np.int64(3))) == fingerprint(Pair(0.5, 3))
    assert fingerprint([1, 2]) == fingerprint((1, 2))


def test_values_without_a_fingerprint_are_refused():
    with pytest.raises(FixArgumentsError, match="has no fingerprint"):
        fingerprint(Pair(object()))


def test_every_config_has_its_own():
    prints = {name: plan(name).fingerprint() for name in CONFIGS}
    assert len(set(prints.values())) == len(prints)
    assert all(len(text) == 64 and int(text, 16) for text in prints.values())


@pytest.mark.parametrize(
    "name, expected",
    [
        ("dpsgd", "ed697a4c0f518cbf1027461251fa10daecece1e0f02a29ada0630c66f0763bac"),
        ("bandmf", "b2103d0df9998efad168d6ed814210fdd506bc001d2bab9d699da012a918d5f7"),
        ("blt", "e8ddfc2cf1adcc79035c4bed5fb4a3ac84e8bc93c78f19520e39054ddad7f9d3"),
    ],
)
def test_it_is_stable(name, expected):
    # Ledgers and checkpoints record it: if it changes, earlier runs cannot resume.
    assert plan(name).fingerprint() == expected


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 11},
        {"noise_multiplier": 1.6},
        {"l2_clip_norm": 2.0},
        {"rescale_to_unit_norm": False},
        {"normalize_by": 3.0},
        {"neighboring_relation": "REPLACE_ONE"},
        {"num_examples": 61},
        {"expected_batch_size": 11},
        {"adaptive_clipping": AdaptiveClipping()},
        {"unit": "user", "examples_per_user_per_batch": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_options_of_privacy_change_it(change):
    changed = dataclasses.replace(CONFIGS["dpsgd"], **change)
    made = changed.make(secrets=PlanSecrets.for_tests(0))
    assert made.fingerprint() != plan("dpsgd").fingerprint()


def test_options_of_speed_and_secrets_do_not_change_it():
    flags = PerformanceFlags(
        microbatch_size=2, intermediate_strategy=SupportedStrategies.ZERO, keep_batch_dim=True
    )
    assert plan("dpsgd", 7, flags).fingerprint() == plan("dpsgd").fingerprint()
    rounded = PerformanceFlags(dtype="bfloat16")  # changes the released numbers
    assert plan("dpsgd", 0, rounded).fingerprint() != plan("dpsgd").fingerprint()


def test_how_a_number_is_written_does_not_change_it():
    written = dataclasses.replace(
        CONFIGS["dpsgd"], expected_batch_size=10.0, l2_clip_norm=1, num_examples=np.int64(60)
    )
    made = written.make(secrets=PlanSecrets.for_tests(0))
    assert made.fingerprint() == plan("dpsgd").fingerprint()

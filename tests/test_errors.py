"""Every error is a ValueError, and its name says what to do."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import bevel
from bevel import errors
from bevel.inspection.scale import scale
from bevel.matrix_factorization.streaming_matrix import prefix_sum
from bevel.noise_addition import gaussian_privatizer
from bevel.sharding import make_mesh, place
from bevel.training.data import source_of

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == "bevel.errors"]


def test_the_errors_are_those_of_the_documentation():
    names = {error.__name__ for error in ALL}
    assert names >= {"BevelError", "FixArgumentsError", "FixLossError", "PadBatchError"}
    assert "MoveCollectiveError" in names


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_a_value_error_and_says_what_it_is_for(error):
    assert issubclass(error, ValueError) and issubclass(error, errors.BevelError)
    assert error.__doc__ and error.__name__.endswith("Error")
    with pytest.raises(ValueError, match="write this instead"):
        raise error("write this instead")


def test_errors_do_not_catch_each_other():
    concrete = [error for error in ALL if error is not errors.BevelError]
    for one in concrete:
        assert [other for other in concrete if issubclass(one, other)] == [one]


def test_errors_are_importable_from_the_package():
    assert bevel.errors is errors


DEEP = {f"layer {i}": {"w": jnp.ones((4, 4)), "b": [jnp.ones(4)] * 3} for i in range(30)}
BATCH = jnp.ones((8, 4))


def total(params, x):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params)) * jnp.sum(x)


class Unreadable:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise OSError("a long story\n" * 50)


def clip(loss, **options):
    return bevel.clipped_grad(loss, **{"l2_clip_norm": 1.0} | options)(DEEP, BATCH)


def add_noise(specs):
    noise = gaussian_privatizer(stddev=1.0, prng_key=0, specs=specs)
    return noise.update(DEEP, noise.init(DEEP))


LONG = {
    "clip norms of another structure": lambda: clip(total, l2_clip_norm={"a": 1.0}),
    "clip norms of another depth": lambda: clip(total, l2_clip_norm={key: [1.0] for key in DEEP}),
    "specs of another structure": lambda: add_noise({"a": PartitionSpec()}),
    "specs of another depth": lambda: add_noise({key: [PartitionSpec()] for key in DEEP}),
    "a loss that branches on data": lambda: clip(lambda p, x: total(p, x) if x.sum() else 0.0),
    "a loss with a wrong shape": lambda: clip(lambda p, x: total(p, x @ jnp.ones((3, 3)))),
    "a loss of a tree": lambda: clip(lambda p, x: p),
    "a loss without a gradient": lambda: clip(
        lambda p, x: jax.lax.while_loop(lambda y: y < 9, lambda y: y * 2, total(p, x))
    ),
    "ways for unknown parameters": lambda: clip(total, norms=dict.fromkeys("abcdefgh", "gram")),
    "rules for unknown leaves": lambda: place(
        DEEP, make_mesh("data=8"), [(f"no/{i}", PartitionSpec("data")) for i in range(30)]
    ),
    "the state of another tree": lambda: prefix_sum().multiply_next(DEEP, {"a": 1}),
    "data that cannot be read": lambda: source_of(Unreadable()).read(np.arange(2)),
    "a function that is not there": lambda: scale(
        f"{__file__}:no_such", axes="data=-1", batch_size=8, devices=(1,)
    ),
    "a file that is not there": lambda: scale(
        "no_such.py:build", axes="data=-1", batch_size=8, devices=(1,)
    ),
}


@pytest.mark.parametrize("case", LONG)
def test_errors_have_at_most_four_lines(case):
    with pytest.raises(errors.BevelError) as caught:
        LONG[case]()
    lines = str(caught.value).splitlines()
    assert len(lines) <= 4 and max(map(len, lines)) <= 600, str(caught.value)

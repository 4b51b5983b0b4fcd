"""Values that arguments are fuzzed with: valid ones, near misses, and values of any other type.

Each is made anew by a function, because a call may consume or change what it gets.
"""

import decimal
import enum
import fractions
import pathlib
import types

import numpy as np
from hypothesis import strategies as st


class _Count(int):
    """A subclass of int that is no bool."""


class _Length(float):
    pass


class _Name(str):
    pass


class _Level(enum.IntEnum):
    ONE = 1


class _Mute:
    """An object that cannot even be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = object.__hash__


VALUES = [
    lambda: None,
    lambda: True,
    lambda: False,
    lambda: np.True_,
    *[
        lambda value=value: value
        for value in (0, 1, -1, 2, 3, 7, 10**9, 2**31, 2**53, 2**63, 10**30, -(10**30))
    ],
    lambda: 10**5000,  # has no repr, and no float
    *[
        lambda value=value: value
        for value in (0.0, -0.0, 0.5, 1.0, 1.5, 3.0, -1.5, 5e-324, 1e-300, 1e300, 10.0**16)
    ],
    lambda: float("inf"),
    lambda: -float("inf"),
    lambda: float("nan"),
    lambda: _Count(3),
    lambda: _Level.ONE,
    lambda: _Length(0.5),
    lambda: np.int64(3),
    lambda: np.int8(-1),
    lambda: np.uint64(2**63),
    lambda: np.float16(0.5),
    lambda: np.float32(0.5),
    lambda: np.float32("nan"),
    lambda: np.float64(2.0),
    lambda: np.float64("inf"),
    lambda: 1 + 1j,
    lambda: decimal.Decimal("1.5"),
    lambda: decimal.Decimal("nan"),
    lambda: fractions.Fraction(1, 2),
    lambda: "",
    lambda: " ",
    lambda: "1",
    lambda: "nan",
    lambda: "auto",
    lambda: "none of these",
    lambda: "two\nlines",
    lambda: "\0",
    lambda: "x" * 100_000,
    lambda: _Name("poisson"),
    lambda: b"",
    lambda: b"bytes",
    lambda: [],
    lambda: [1],
    lambda: [0.5, 0.25],
    lambda: [float("nan")],
    lambda: [None],
    lambda: ["a", "b"],
    lambda: [[1, 2], [3]],
    lambda: (),
    lambda: (1, 2),
    lambda: (0.5,),
    lambda: (1, -1),
    lambda: (np.inf, 1.0),
    lambda: {},
    lambda: {"a": 1},
    lambda: {1: None},
    lambda: {"a"},
    lambda: range(3),
    lambda: iter([1, 2]),
    lambda: object(),
    lambda: _Mute(),
    lambda: types.SimpleNamespace(step=0),
    lambda: lambda *args, **kwargs: None,
    lambda: int,
    lambda: ...,
    lambda: pathlib.Path("somewhere"),
    lambda: np.array(3),
    lambda: np.array(np.nan),
    lambda: np.array([]),
    lambda: np.array([0, 1, 2]),
    lambda: np.array([3, 1, 2]),
    lambda: np.array([-1, 2**62]),
    lambda: np.array([0, 2**63], np.uint64),
    lambda: np.array([0.5, 0.25]),
    lambda: np.array([1.0, np.nan]),
    lambda: np.array([True, False]),
    lambda: np.array(["a", "b"]),
    lambda: np.array([1, None], object),
    lambda: np.array([1 + 1j]),
    lambda: np.array(["2020-01-01"], "datetime64[D]"),
    lambda: np.zeros((2, 2)),
    lambda: np.zeros((0, 3), np.int64),
    lambda: np.zeros(2, [("a", int), ("b", float)]),
    lambda: np.ma.masked_array([0, 1, 2], [False, True, False]),
    lambda: np.ma.masked_array([0.5, 0.25], [False, False]),
    lambda: np.ma.masked,
    lambda: np.datetime64("2020-01-01"),
    lambda: np.timedelta64(3, "s"),
]

GENERATED = st.one_of(
    st.integers(),
    st.integers(-3, 40),
    st.integers(2**31, 2**80),
    st.floats(),
    st.floats(-2, 40),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.integers(-3, 10), max_size=4),
    st.lists(st.floats(), max_size=3).map(tuple),
)
ANY = st.one_of(
    st.sampled_from(VALUES), st.sampled_from(VALUES), GENERATED.map(lambda v: lambda: v)
)

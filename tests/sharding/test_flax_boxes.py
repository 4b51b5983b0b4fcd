"""Boxes are found by what they carry, and keep what they carry."""

import jax
import numpy as np
from flax import linen as nn
from flax import nnx

from bevel.sharding.flax_boxes import axis_names, boxed_like, is_box, unboxed

X, Y = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)


def test_linen_boxes():
    for box in (nn.Partitioned(X, ("a", None)), nn.LogicallyPartitioned(X, ("a", None))):
        assert is_box(box)
        assert unboxed(box) is X
        assert axis_names(box) == ("a", None)
        other = boxed_like(box, Y)
        assert type(other) is type(box)
        assert other.value is Y
        assert other.names == box.names


def test_nnx_variables_with_and_without_names():
    named = nnx.Param(X, out_sharding=("a", None), eager_sharding=False)
    plain = nnx.Param(X)
    assert is_box(named)
    assert is_box(plain)
    assert axis_names(named) == ("a", None)
    assert axis_names(plain) is None
    np.testing.assert_array_equal(jax.tree.leaves(boxed_like(named, Y))[0], Y)
    assert axis_names(boxed_like(named, Y)) == ("a", None)


def test_what_is_no_box_stays():
    for x in (X, jax.ShapeDtypeStruct((2,), np.float32), {"names": X}, 1.0, None, nn.Dense(2)):
        assert not is_box(x)
        assert unboxed(x) is x
        assert boxed_like(x, Y) is Y
        assert axis_names(x) is None

"""Which leaves are clipped together."""

import jax
import losses
import pytest

from bevel import clipped_grad
from bevel.clipping.accumulate.clip_groups import group_by_clip_norm
from bevel.clipping.options import Clip
from bevel.errors import FixArgumentsError


def test_leaves_take_the_group_of_their_prefix():
    tree = jax.tree.structure({"a": [0, 0], "b": {"c": 0, "d": (0,)}})
    assert group_by_clip_norm(Clip.checked(1.0), tree).of_leaf == [0, 0, 0, 0]
    prefix = {"a": 1.0, "b": {"c": 2.0, "d": 3.0}}
    groups = group_by_clip_norm(Clip.checked(prefix), tree)
    assert groups.of_leaf == [0, 0, 1, 2] and groups.clip_norms == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "norms", [[1.0], [1.0, 2.0, 3.0], {"a": 1.0}, [1.0, {"w": 1.0}], [{"w": [1.0], "b": 1.0}, 1.0]]
)
def test_a_tree_of_norms_that_is_no_prefix_is_refused(norms):
    case = losses.make("mlp")
    message = "not a prefix of what is clipped.*Pass one number, or a tree with a number in place"
    with pytest.raises(FixArgumentsError, match=message):
        clipped_grad(case.loss, l2_clip_norm=norms)(case.params, case.batch)

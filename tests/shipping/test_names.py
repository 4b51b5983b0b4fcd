"""Names are those that people of the framework know."""

import pytest
from jax.tree_util import DictKey, GetAttrKey

from bevel.errors import FixArgumentsError
from bevel.shipping.names import name_in, natural_names


def test_boxes_are_left_out_where_the_record_leaves_them_out():
    names = natural_names(["conv/kernel/value", "scale"], ["conv/kernel", "scale"])
    assert list(names.values()) == ["conv/kernel", "scale"]
    assert list(natural_names(["a/value"], ["a/value"]).values()) == ["a/value"]


def test_parameters_that_are_one_array_have_a_name():
    assert natural_names([""], [""]) == {"": "params"}
    assert name_in({"params": 0}, ()) == "params"


def test_two_parameters_of_one_name_are_refused():
    with pytest.raises(FixArgumentsError, match="two parameters would be exported as 'a'"):
        natural_names(["a/value", "a"], ["a"])


def test_a_leaf_is_found_with_and_without_its_box():
    path = (DictKey("conv"), DictKey("kernel"), GetAttrKey("value"))
    assert name_in({"conv/kernel": 0}, path) == "conv/kernel"
    assert name_in({"conv/kernel/value": 0}, path) == "conv/kernel/value"

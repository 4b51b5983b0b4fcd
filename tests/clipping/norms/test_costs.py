"""What ways of computing a norm cost, from shapes."""

import pytest

from bevel.clipping.norms.costs import cost, costs_of
from bevel.clipping.norms.registry import GradientSizes
from bevel.clipping.options import WAYS

SIZES = [
    GradientSizes(1, 1, 64, 32),
    GradientSizes(1, 16, 64, 32),
    GradientSizes(4, 16, 64, 32),
    GradientSizes(2, 16, 500, 32, looked_up=True),
    GradientSizes(1, 64, 27, 16, pixels=300),
]


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_costs_are_positive_and_grow_with_every_size(way, sizes, itemsize):
    one = cost(way, sizes, itemsize)
    if one is None:
        assert way in ("outer", "product", "form")
        return
    assert all(part > 0 for part in one._replace(idle=1, temporary=1))
    assert one.idle >= 0 and one.temporary >= 0
    for name in ("separate", "rows", "left", "right"):
        if way == "outer" and name == "rows":
            continue
        larger = cost(way, sizes._replace(**{name: 2 * getattr(sizes, name)}), itemsize)
        assert larger.flops >= one.flops and larger.bytes >= one.bytes, name
        assert larger.memory >= one.memory, name
        # Only a formed gradient is as long as the table that is looked up.
        free = sizes.looked_up and name == "left" and way != "keep"
        assert larger.time(itemsize) >= one.time(itemsize) * (1 if free else 1 + 1e-9), name


@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_several_uses_cost_more_than_one(itemsize):
    sizes = SIZES[1]
    alone = costs_of([sizes], overlapping=False, itemsize=itemsize)
    assert {"gram", "product", "keep"} == set(alone)
    for overlapping in (False, True):
        both = costs_of([sizes, sizes], overlapping, itemsize)
        assert set(both) == set(alone)
        for way, one in alone.items():
            assert both[way].flops >= 2 * one.flops and both[way].time(itemsize) > one.time(
                itemsize
            )
    assert "outer" in costs_of([SIZES[0]] * 2, overlapping=False, itemsize=itemsize)
    assert "outer" not in costs_of([SIZES[0]] * 2, overlapping=True, itemsize=itemsize)
    mixed = costs_of([sizes, SIZES[3]], overlapping=True, itemsize=itemsize)
    assert "gram" in mixed and "product" not in mixed

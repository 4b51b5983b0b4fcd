import dataclasses

import pytest

from bevel.inspection.step_report import Collective, Memory, StepReport

PLAIN = Collective(
    kind="all-gather",
    dtype="f32",
    shapes=((8, 4),),
    bytes=128,
    group_size=4,
    axes=("data",),
    spans_axes=True,
    times=1,
    trip_counts=(),
    in_branch=False,
    is_async=False,
    sliced_bytes=0,
    reducer=None,
    is_widened=False,
    line=None,
    operation="",
    name="a",
    operands=(),
    computation="main",
)


def one(**changed):
    return dataclasses.replace(PLAIN, **changed)


@pytest.mark.parametrize(
    "kind, sent",
    [
        ("all-gather", 96),
        ("all-reduce", 192),
        ("reduce-scatter", 96),
        ("all-to-all", 96),
        ("collective-permute", 128),
    ],
)
def test_what_is_sent_around_a_ring(kind, sent):
    assert one(kind=kind).sent == sent
    assert one(kind=kind, group_size=1).sent == 0


def test_totals_leave_out_branches_that_are_not_taken():
    collectives = [one(times=3), one(times=0, in_branch=True), one(kind="all-reduce", times=2)]
    report = StepReport(collectives, {"data": 4}, 4, 0.0, None, [], 0.0, Memory(1, 2, 3, 4))
    assert report.totals["all-gather"].count == 3 and report.totals["all-gather"].bytes == 3 * 128
    assert report.bytes == 5 * 128 and report.sent == 3 * 96 + 2 * 192
    assert "0 (other branch)" in str(report) and report.memory.peak == 1 + 2 - 3 + 4


def test_narrow_sums():
    assert one(dtype="bf16", reducer="add").is_narrow_sum
    assert one(dtype="f8e4m3fn", reducer="add").is_narrow_sum
    assert one(is_widened=True, reducer="add").is_narrow_sum
    assert not one(dtype="bf16", reducer="maximum").is_narrow_sum
    assert not one(dtype="f32", reducer="add").is_narrow_sum
    assert not one(dtype="bf16", reducer="add", group_size=1).is_narrow_sum

"""A proposal can be read as a config, and its ranges are rounded."""

import tomllib

import pyarrow as pa
import pytest

from bevel.datasets import declared
from bevel.datasets.column_scan import ColumnScan
from bevel.datasets.columns import columns_of
from bevel.datasets.proposal import rounded_range, table_proposal
from bevel.errors import FixDataError


def scanned(**columns):
    found = []
    for name, values in columns.items():
        scan = ColumnScan(name, pa.array(values).type)
        scan.add(pa.array(values))
        found.append(scan.overview())
    return found


def columns(count=100):
    return scanned(
        row=list(range(count)),
        user=[f"u{k % 9}" for k in range(count)],
        age=[17 + k % 74 for k in range(count)],
        pay=["" if k == 3 else str(k / 7) for k in range(count)],
        job=["abc"[k % 3] for k in range(count)],
        day=[f"2020-01-{k % 28 + 1:02}" for k in range(count)],
        town=[f"town {k % 70}" for k in range(count)],
        tags=[[k] for k in range(count)],
        income=["low" if k % 2 else "high" for k in range(count)],
    )


@pytest.mark.parametrize(
    ("found", "rounded"),
    [
        ((17, 90), (10, 90)),
        ((0.013, 0.987), (0.0, 1.0)),
        ((-3.7, 12.2), (-10, 20)),
        ((5, 5), (4, 6)),
        ((0.00021, 0.00093), (0.0002, 0.001)),
        ((1e6, 7.3e6), (1e6, 8e6)),
    ],
)
def test_ranges_are_widened_to_round_numbers(found, rounded):
    low, high = rounded_range(*found)
    assert (low, high) == pytest.approx(rounded)
    assert low <= found[0] and high >= found[1]


def test_every_column_has_its_place():
    found = table_proposal({"source": "a.csv"}, columns())
    read = tomllib.loads(found.toml())["data"]
    inputs = read.pop("columns")
    assert read == {"source": "a.csv", "y": "income", "classes": ["high", "low"], "user": "user"}
    assert list(inputs) == ["age", "pay", "job", "day"]
    assert inputs["age"] == [10, 90]
    assert inputs["pay"] == [0, 20, "missing"]
    assert inputs["job"] == ["a", "b", "c"]
    assert len(columns_of({name: declared(value) for name, value in inputs.items()})) == 4
    for name, reason in (("row", "identifies"), ("town", "70 different"), ("tags", "nested")):
        assert reason in found.comments[name]


def test_labels_by_name_and_by_type():
    named = table_proposal({}, columns(), "job")
    assert named.data["classes"] == ["a", "b", "c"]
    number = table_proposal({}, columns(), "age")
    assert number.data["target"] == "number" and number.data["y_range"] == [10, 90]
    zero = table_proposal({}, scanned(a=[0.5, 1.5, 2.5], y=[0, 1, 3]))
    assert zero.data["classes"] == 4
    one = table_proposal({}, scanned(a=[0.5, 1.5, 2.5], y=[1, 10, 2]))
    assert one.data["classes"] == ["1", "2", "10"]
    missing = table_proposal({}, scanned(a=[0.5, 1.5, 2.5], y=["b", "", "a"]))
    assert missing.data["drop_missing"] is True


def test_a_table_of_texts_is_proposed_as_tokens():
    reviews = [f"this was a long review of the product, {k} times" for k in range(50)]
    found = table_proposal({}, scanned(review=reviews, label=[k % 2 for k in range(50)]))
    assert found.data["kind"] == "tokens" and found.data["x"] == "review"
    assert found.data["length"] == 64


def test_rare_categories_are_not_proposed():
    """A category of one record would publish that this record exists."""
    jobs = ["common"] * 600 + ["other"] * 399 + ["astronaut"]
    found = table_proposal({}, scanned(job=jobs, y=[k % 2 for k in range(1000)]))
    assert found.columns["job"] == ["common", "other"]


@pytest.mark.parametrize(
    ("label", "message"), [("nothing", "there is no column"), ("tags", "cannot be predicted")]
)
def test_a_label_that_cannot_be_used(label, message):
    with pytest.raises(FixDataError, match=message):
        table_proposal({}, columns(), label)

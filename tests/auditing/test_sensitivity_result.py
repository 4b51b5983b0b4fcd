"""The text of a sensitivity check names the worst case, and where it was."""

from bevel.auditing import SensitivityResult
from bevel.auditing.sensitivity_result import SumMovement


def result(*moved, **changed):
    found = tuple(SumMovement(f"case {k}", x, "w", "the gradients") for k, x in enumerate(moved))
    return SensitivityResult(0.5, 0.01, found, **changed)


def test_rounding_is_allowed():
    assert result(0.2, 1.01).passed and result(1.01).moved == 1.01
    assert not result(0.2, 1.02).passed


def test_the_text():
    text = str(result(0.2, 3.0, not_checked=("NaN", "large inputs"), unit="user"))
    assert text.splitlines() == [
        "sensitivity FAILED: one user contributes more than the noise is made for",
        "  bound         0.5, and 0.01 of it for rounding",
        "  moved         0.200 of the bound: case 0",
        "                3.000 of the bound: case 1; most of it in w (the gradients)",
        "  not checked   NaN",
        "                large inputs",
    ]


def test_the_record():
    record = result(0.5).to_dict()
    assert record["passed"] and record["moved"] == 0.5 and record["unit"] == "example"

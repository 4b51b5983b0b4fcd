"""The text of an audit says what was promised, measured, attacked and not attacked."""

import numpy as np
import pytest

from bevel.auditing import AuditResult

SCORES = np.arange(8.0)


def result(**changed):
    fields = {
        "promised_epsilon": 4.0, "delta": 1e-5, "epsilon": 2.1, "limit": 4.0, "significance": 0.05,
        "strongest": 9.0, "scores": SCORES, "held_in": SCORES > 3, "attack": "every step",
        "attacked": ("w (8 canaries)",), "not_attacked": ("files",),
    }  # fmt: skip
    return AuditResult(**fields | changed)


def test_the_text_of_an_audit():
    assert str(result()).splitlines() == [
        "audit PASSED: the attack found no violation, which does not prove that there is none",
        "  promised      epsilon 4 at delta 1e-05",
        "  measured      epsilon at least 2.1, with 95% confidence",
        "  canaries      8, of which 4 are held in",
        "  attacked      every step",
        "                w (8 canaries)",
        "  not attacked  files",
    ]


def test_a_bound_above_the_limit_fails():
    failed = result(epsilon=4.2)
    assert not failed.passed and "FAILED" in str(failed)
    assert result(epsilon=4.2, limit=4.5).passed  # above the promise, but not of a Gaussian one


@pytest.mark.parametrize(("significance", "shown"), [(0.05, "95%"), (0.1, "90%"), (0.01, "99%")])
def test_confidence(significance, shown):
    assert f"with {shown} confidence" in str(result(significance=significance))


def test_too_few_canaries_are_named():
    assert "show at most epsilon 3" in str(result(strongest=3.0))

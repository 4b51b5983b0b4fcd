"""An audit says what was promised, measured and attacked, as text, as a record and as a picture."""

import json
import stat

import numpy as np
import pytest

from bevel.auditing import AuditResult, SensitivityResult, read_audit
from bevel.auditing.released_files import Trace
from bevel.auditing.sensitivity_result import SumMovement
from bevel.errors import FixArgumentsError

SCORES = np.arange(8.0)
TRACE = Trace("a.npz", "ring", "noise")
TOO_FAR = SensitivityResult(1.0, 0.01, (SumMovement("as is", np.inf, "w", "the gradients"),))


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


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"findings": ("noise: 3 pairs",)}, "audit FAILED: the noise repeats itself"),
        ({"traces": (TRACE,)}, "audit FAILED: there are private values in released files"),
        ({"sensitivity": TOO_FAR}, "audit FAILED: contributions to the clipped sum are not"),
        ({"epsilon": 9.0, "traces": (TRACE,)}, "audit FAILED: the run loses more privacy"),
    ],
)  # fmt: skip
def test_other_findings_fail_the_audit_too(changed, verdict):
    failed = result(**changed)
    assert not failed.passed and str(failed).startswith(verdict)
    if failed.traces:
        assert "  traces        a.npz, ring: noise" in str(failed).splitlines()


FIELDS = {
    "promised", "delta", "bound", "limit", "significance", "attack", "canaries", "held_in",
    "passed", "attacked", "not_attacked", "histogram", "roc", "promise", "strongest", "findings",
    "traces",    "sensitivity",
}  # fmt: skip


def test_a_record_is_kept_in_the_private_half(tmp_path):
    kept = result(limit=np.inf, traces=(TRACE,), sensitivity=TOO_FAR)
    path = kept.save(tmp_path / "run")
    assert path == tmp_path / "run" / "private" / "audit.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["audit.json"]  # no temporary file is left
    record = read_audit(tmp_path / "run")
    assert record.keys() == FIELDS and record == json.loads(json.dumps(kept.to_dict()))
    assert (record["promised"], record["bound"], record["delta"]) == (4.0, 2.1, 1e-5)
    assert (record["canaries"], record["held_in"], record["passed"]) == (8, 4, False)
    assert record["limit"] is None  # infinity is not JSON
    assert record["traces"] == [{"file": "a.npz", "entry": "ring", "what": "noise"}]
    assert record["sensitivity"]["movements"][0]["moved"] is None
    assert sum(record["histogram"]["held_in"]) == 4
    assert record["roc"]["tpr"][-1] == record["promise"]["tpr"][-1] == 1
    assert not (tmp_path / "run" / "released").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "has no private/audit.json"), ("[", "is not the record of an audit"), ("3", "is not")],
)
def test_a_record_that_cannot_be_read(tmp_path, text, message):
    (tmp_path / "private").mkdir()
    if text is not None:
        (tmp_path / "private" / "audit.json").write_text(text)
    with pytest.raises(FixArgumentsError, match=message):
        read_audit(tmp_path)


def test_a_picture(tmp_path):
    path = result().plot(tmp_path / "audit.svg")
    assert path.read_text().startswith("<?xml")

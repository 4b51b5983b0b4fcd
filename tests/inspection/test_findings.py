import json

from bevel.inspection.collectives import StepReport
from bevel.inspection.findings import Diagnosis, Finding, worst_first
from bevel.sharding.source_lines import SourceLine

REPORT = StepReport([], None, 1, 0.0, None, [], 0.0, None)
NOTE = Finding("note", "b", "what b", "fix b")
WARNING = Finding("warning", "a", "what a", "fix a", SourceLine("/x/train.py", 3), 5.0)
ERROR = Finding("error", "c", "what c", "fix c")


def test_the_worst_comes_first():
    larger = Finding("warning", "a", "more", "fix", None, 9.0)
    assert worst_first([NOTE, WARNING, larger, ERROR]) == [ERROR, larger, WARNING, NOTE]


def test_a_diagnosis_prints_and_converts():
    found = Diagnosis([WARNING, NOTE], REPORT)
    assert found and len(found) == 2 and list(found) == [WARNING, NOTE]
    assert found.of("a") == [WARNING]
    text = str(found)
    assert "what a" in text and "fix b" in text and "/x/train.py:3" in text
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["findings"][0]["line"] == "/x/train.py:3" and "report" in plain
    assert "fix: fix a" in str(WARNING)


def test_no_finding_is_said_to_be_none():
    found = Diagnosis([], REPORT)
    assert not found and str(found) == "Nothing found."

import copy
import json
import math

import pytest

from bevel.errors import FixArgumentsError
from bevel.report import write_report
from bevel.report.audit import read_audit


@pytest.fixture
def audited(by_hand, audit_record):
    """The folder of a run with an audit, which fields can be changed of."""

    def make(**changed):
        folder = by_hand()
        (folder / "private" / "audit.json").write_text(json.dumps(audit_record | changed))
        return folder

    return make


def test_a_passed_audit_is_not_called_a_proof(audited):
    found = read_audit(audited() / "private")
    assert found.passed and "A passed audit is not a proof" in found.verdict
    assert "ε = 3.001 at δ = 0.001" in found.verdict  # the promise is rounded up
    assert "at least 0.4123, with 95% confidence" in found.verdict  # the bound is rounded down
    facts = dict(found.facts)
    assert facts["Canaries"] == "100, of which 52 were held in"
    assert facts["What the attacker saw"] == "every step"
    assert found.attacked == ("clipping", "noise") and found.not_attacked == ("floating point",)


def test_a_failed_audit_says_so(audited):
    found = read_audit(audited(passed=False, bound=5.0) / "private")
    assert not found.passed and "The audit failed: the run loses more privacy" in found.verdict
    assert "at least 5, with" in found.verdict and "passed" not in found.verdict


def test_figures_show_the_scores_and_the_attack_against_the_promise(audited, audit_record):
    scores, roc = read_audit(audited() / "private").figures
    held_in, held_out = scores.series
    assert list(held_in.x) == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert list(held_in.y) == [0, 2, 2, 30, 30, 20, 20, 0]
    assert max(held_out.y) == 28 and held_out.dash and not held_in.dash
    attack, promise, guess = roc.series
    assert list(attack.x) == audit_record["roc"]["fpr"]
    assert list(promise.y) == audit_record["promise"]["tpr"] and list(guess.y) == [0, 1]


def test_a_run_without_an_audit_has_none(by_hand):
    assert read_audit(by_hand() / "private") is None and read_audit(None) is None


def test_another_run_may_be_named(audited, by_hand):
    other, own = audited(), by_hand(at="own")
    assert read_audit(own / "private", other).passed
    assert "The audit passed" in write_report(own, include_raw=True, audit=other).read_text()
    with pytest.raises(FixArgumentsError, match=r"own was not audited\. Run `bevel audit`"):
        read_audit(None, own)


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("promised"),
        lambda r: r.pop("histogram"),
        lambda r: r.update(bound="<b>"),
        lambda r: r.update(bound=None),
        lambda r: r.update(bound=-1),
        lambda r: r.update(delta=True),
        lambda r: r.update(passed=1),
        lambda r: r.update(histogram=[]),
        lambda r: r.update(attacked="clipping"),
        lambda r: r["histogram"].update(edges=[0]),
        lambda r: r["histogram"].update(edges=list(range(2000))),
        lambda r: r["histogram"].update(held_in=[1]),
        lambda r: r["histogram"].update(held_out=[1, None, 2]),
        lambda r: r["roc"].update(tpr=[0, 2]),
        lambda r: r["roc"].update(fpr=[], tpr=[]),
        lambda r: r["roc"].update(fpr=[0, 0.5]),
        lambda r: r["promise"].update(tpr="x"),
        lambda r: r.update(promise=None),
    ],
)
def test_damaged_records_are_refused(audited, audit_record, damage):
    record = copy.deepcopy(audit_record)
    damage(record)
    folder = audited()
    (folder / "private" / "audit.json").write_text(json.dumps(record))
    with pytest.raises(FixArgumentsError, match=r"audit\.json is not a valid record of an audit"):
        read_audit(folder / "private")


@pytest.mark.parametrize("text", ["{", "[]", "", '{"promised": NaN}'])
def test_files_that_are_not_records_are_refused(audited, text):
    folder = audited()
    (folder / "private" / "audit.json").write_text(text)
    with pytest.raises(FixArgumentsError, match=r"audit\.json"):
        read_audit(folder / "private")


def test_a_damaged_audit_stops_the_owners_page_and_not_the_public_one(audited):
    folder = audited(bound=None)
    with pytest.raises(FixArgumentsError, match="bound is None"):
        write_report(folder, include_raw=True)
    assert write_report(folder).exists()


def test_no_text_of_an_audit_is_markup(audited):
    evil = "<script>alert(1)</script>"
    folder = audited(attack=evil, attacked=[evil], not_attacked=[{evil: evil}])
    text = write_report(folder, include_raw=True).read_text()
    assert "<script>" not in text and text.count("&lt;script&gt;") == 4


def test_infinite_bounds_are_refused_as_json_has_none(audited):
    folder = audited()
    path = folder / "private" / "audit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bound": math.inf}))
    with pytest.raises(FixArgumentsError, match="bound is inf"):
        read_audit(folder / "private")


def test_audits_are_on_the_owners_page_only(audited, by_hand):
    with pytest.raises(FixArgumentsError, match="an audit is on the owner's page only"):
        write_report(by_hand(at="own"), audit=audited())

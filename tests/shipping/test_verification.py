"""A statement that was forged, or a ledger that was, does not pass; what is true does."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shipping_statements import fields_of, rewrite

from bevel.accounting import Budget, Ledger, dpsgd_event, gaussian_event
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.errors import BevelError, FixArgumentsError
from bevel.shipping import verify
from bevel.shipping.claim import claim_of, status_of
from bevel.shipping.ledger_file import read_ledger
from bevel.shipping.verification import as_json

ROOT = Path(__file__).resolve().parents[2]


def failed(result):
    return {check.name for check in result.checks if not check.passed}


def said(result, name):
    return next(check.said for check in result.checks if check.name == name)


def test_a_true_statement_passes(exported):
    result = verify(exported)
    names = [check.name for check in result.checks]
    assert result.passed and result.epsilon == result.epsilon_now == result.statement.epsilon
    assert names == ["statement", "model", "ledger", "terms", "run", "event", "epsilon", "words"]
    assert f"verify PASSED. {result.statement.claim}" in str(result)


def test_two_files_are_enough(exported, tmp_path):
    """No run folder, no data and no keys; and neither Orbax nor safetensors is imported."""
    for name in ("privacy.json", "ledger.jsonl"):
        shutil.copy(exported / name, tmp_path)
    code = (
        "import sys; from bevel.cli import main; "
        "code = main(['verify', 'privacy.json', '--ledger', 'ledger.jsonl']); "
        "print(sorted({'orbax', 'safetensors', 'flax'} & sys.modules.keys())); sys.exit(code)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("[]\n") and "epsilon: recomputed from the ledger" in run.stdout


def test_what_cannot_be_checked_is_said(exported, tmp_path):
    text = str(verify(exported / "privacy.json"))
    for words in (
        "That the training ran as the ledger says",
        "no other ledger for the same data",
        "the ledger beside the statement is the newest",
        "The model: pass it",
        "That the noise key was and stays secret",
        "the proof is for real numbers, and the computer used 'float32'",
        "Tuning outside of the ledger: 'not counted'",
    ):
        assert words in text
    elsewhere = shutil.copy(exported / "ledger.jsonl", tmp_path)
    text = str(verify(exported / "privacy.json", elsewhere, exported / "model.safetensors"))
    assert "is the newest" not in text and "The model: pass it" not in text


# Forged statements. `digest` says whether the forger computes the new digest too.


def forged(shipped, *, digest=True, **changed):
    fields = fields_of(shipped)
    for name, value in changed.items():
        outer, _, inner = name.partition("__")
        fields[outer] = fields[outer] | {inner: value} if inner else value
    keep = ("epsilon", "delta", "unit", "relation", "key_is_secret")
    if "claim" not in changed:
        fields["claim"] = claim_of(*(fields[name] for name in keep))
    run = fields["run"]
    if "run__status" not in changed:
        run["status"] = status_of(run["step"], run["steps"], run["ending"])
    rewrite(shipped, fields, digest=digest)
    return verify(shipped)


def test_a_changed_statement_does_not_match_its_digest(shipped):
    fields = fields_of(shipped)
    for name, value in (
        ("tuning", "nothing"),
        ("warnings", ["none"]),
        ("versions", {"trained": {}, "exported": {}}),
        ("arithmetic", fields["arithmetic"] | {"exact": True}),
        ("digest", "0" * 64),
    ):
        rewrite(shipped, fields | {name: value}, digest=False)
        assert failed(verify(shipped)) == {"statement"}


def test_a_lowered_epsilon_is_found(shipped):
    epsilon = fields_of(shipped)["epsilon"]
    for lower in (epsilon * 0.5, epsilon * (1 - 1e-5), 0.0):
        result = forged(shipped, epsilon=lower)
        assert failed(result) == {"epsilon"}
        assert f"is {epsilon!r} at delta 0.001, which is more than" in said(result, "epsilon")
        assert "verify FAILED: do not rely on this statement." in str(result)


def test_a_raised_epsilon_is_found_unless_another_version_computed_it(shipped):
    fields = fields_of(shipped)
    result = forged(shipped, epsilon=2 * fields["epsilon"])
    assert failed(result) == {"epsilon"} and "promises less than it could" in str(result)
    versions = copy.deepcopy(fields["versions"])
    versions["exported"]["dp-accounting"] = "0.0.1"
    result = forged(shipped, versions=versions)
    assert result.passed and "another version of dp-accounting" in said(result, "epsilon")


def test_a_changed_delta_is_found(shipped):
    for delta in (1e-9, 1e-2):
        assert failed(forged(shipped, delta=delta)) == {"epsilon"}


def test_a_changed_unit_relation_or_budget_is_found(shipped):
    original = fields_of(shipped)
    assert failed(forged(shipped, unit="user")) == {"terms"}
    rewrite(shipped, original)
    assert failed(forged(shipped, relation="REPLACE_ONE")) == {"terms"}
    for budget in (None, {"epsilon": 1.0, "delta": 1e-3}, {"epsilon": 5.0, "delta": 1e-9}):
        rewrite(shipped, original)
        result = forged(shipped, budget=budget)
        assert failed(result) == {"terms"} and "the budget of the ledger is" in str(result)


def test_a_changed_event_is_found(shipped):
    event = fields_of(shipped)["mechanism"]["event"]
    for other in (event | {"count": event["count"] - 1}, event["event"], {"kind": "NoOpDpEvent"}):
        assert "event" in failed(forged(shipped, mechanism__event=other))


def test_words_that_contradict_the_numbers_are_found(shipped):
    original = fields_of(shipped)
    for changed in (
        {"claim": "This model is perfectly private."},
        {"mechanism__words": "a lot of noise"},
        {"run__status": "complete"},
        {"arithmetic__proof": "floating-point numbers"},
    ):
        rewrite(shipped, original)
        assert failed(forged(shipped, **changed)) == {"words"}


def test_a_run_that_was_not_charged_is_found(shipped):
    original = fields_of(shipped)
    assert "ledger" in failed(forged(shipped, run__name="another"))
    rewrite(shipped, original)
    assert "run" in failed(forged(shipped, run__name="another", ledger__lines_of_run=[]))
    for changed in (
        {"run__plan": "f" * 64},
        {"run__attempt": 1},
        {"run__step": 9, "run__steps": 9},
    ):
        rewrite(shipped, original)
        assert failed(forged(shipped, **changed)) == {"run"}


def test_an_earlier_head_does_not_make_the_model_cheaper(shipped):
    """The true ledger, and a head before the last charge, with all that follows from it."""
    then = read_ledger(shipped / "ledger.jsonl").up_to(4)
    early = {
        "epsilon": then.epsilon(1e-3),
        "ledger__lines": 4,
        "ledger__head": then.contents.hashes.head,
        "ledger__sha256": then.sha256,
        "ledger__lines_of_run": [[2, 4]],
        "mechanism__event": then.event,
    }
    result = forged(shipped, **early)
    assert "run" in failed(result) and "has released step 6" in said(result, "run")
    assert "everything that was released until now costs epsilon" in said(result, "later charges")


# Forged ledgers.


def lines_of(shipped):
    return (shipped / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def with_lines(shipped, lines):
    (shipped / "ledger.jsonl").write_bytes(b"".join(lines))
    return verify(shipped)


def test_a_ledger_without_its_last_lines_is_found(shipped):
    lines = lines_of(shipped)
    for left in range(1, len(lines)):
        result = with_lines(shipped, lines[:left])
        assert failed(result) == {"ledger"} and f"it has {left} of the 5 lines" in str(result)


def test_lines_that_are_dropped_moved_or_doubled_are_found(shipped):
    lines = lines_of(shipped)
    for changed in (
        [lines[0], *lines[2:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines[:3], lines[2], *lines[3:]],
        lines[1:],
        [line.replace(b'"attempt":0', b'"attempt":1') for line in lines],
        [*lines, b"\0\0\0\0"],
        [*lines, b"\n"],
        [],
    ):
        assert failed(with_lines(shipped, changed)) == {"ledger"}


def rechained(entries):
    previous, lines = START, []
    for number, entry in enumerate(entries):
        line, previous = line_of(entry, number, previous)
        lines.append(line)
    return lines


def test_another_ledger_is_found_even_if_its_chain_is_intact(shipped):
    entries = [json.loads(line)["entry"] for line in lines_of(shipped)]
    cheaper = copy.deepcopy(entries)
    for entry in cheaper[1:]:
        if "event" in entry:
            entry["event"] = {"kind": "GaussianDpEvent", "noise_multiplier": 1e6}
    result = with_lines(shipped, rechained(cheaper))
    assert failed(result) == {"ledger"} and "it is another ledger" in str(result)
    with Ledger.open(
        shipped / "other.jsonl",
        unit="example",
        relation="ADD_OR_REMOVE_ONE",
        budget=Budget(9, 1e-5),
    ) as ledger:
        run = ledger.run("other", plan="p", key="0" * 64)
        for step in range(9):
            run.charge(step, step + 1, dpsgd_event(5.0, 1, sampling_prob=0.01))
    assert failed(verify(shipped / "privacy.json", shipped / "other.jsonl")) == {"ledger"}


def test_a_ledger_of_someone_who_lies_is_not_printed_as_it_is(shipped):
    """Control characters and the like never reach the terminal."""
    entries = [json.loads(line)["entry"] for line in lines_of(shipped)]
    evil = "\x1b[2J<script>\u202e"
    for entry in entries[1:]:
        entry["run"] = evil
    renamed = with_lines(shipped, rechained(entries))
    entries[-1]["plan"] = evil
    replanned = with_lines(shipped, rechained(entries))
    fields = fields_of(shipped)
    fields["run"]["name"] = fields["tuning"] = fields["run"]["ending"] = evil
    fields["model"]["files"] = {evil: "0" * 64}
    rewrite(shipped, fields)
    for result in (renamed, replanned, verify(shipped)):
        assert not result.passed
        assert all(line.isprintable() for line in str(result).splitlines())
        text = as_json(result)
        assert text.isascii() and "<" not in text and "\x1b" not in text
        assert json.loads(text)["passed"] is False


def test_later_charges_are_told_apart_from_the_statement(shipped):
    before = fields_of(shipped)["epsilon"]
    terms = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE", "budget": Budget(5, 1e-3)}
    with Ledger.open(shipped / "ledger.jsonl", **terms) as ledger:
        ledger.run("later", plan="p", key="0" * 64).charge(0, 1, gaussian_event(9.0, 1))
    result = verify(shipped)
    assert result.passed and result.epsilon == before < result.epsilon_now
    assert "The statement was true at its line 5" in said(result, "later charges")
    assert f"costs epsilon {result.epsilon_now!r}" in said(result, "later charges")
    assert result.to_dict()["epsilon_now"] == result.epsilon_now
    # A forger who lowers epsilon is found nevertheless.
    assert failed(forged(shipped, epsilon=before / 2)) == {"epsilon"}


def test_a_ledger_whose_cost_cannot_be_computed_fails(shipped, monkeypatch):
    from bevel.accounting.ledger import spent

    def broken(*args, **kwargs):
        raise OverflowError("too large\nfor this accountant")

    monkeypatch.setattr(spent, "epsilon_of", broken)
    result = verify(shipped)
    assert failed(result) == {"epsilon"} and "cannot be recomputed" in said(result, "epsilon")


# The model.


def test_another_model_is_found(shipped, exported):
    model = shipped / "model.safetensors"
    data = model.read_bytes()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    result = verify(shipped)
    assert failed(result) == {"model"} and "'model.safetensors' is another file" in str(result)
    result = verify(shipped / "privacy.json", model=exported / "ledger.jsonl")
    assert failed(result) == {"model"}
    renamed = shutil.copy(exported / "model.safetensors", shipped / "renamed")
    assert verify(shipped / "privacy.json", model=renamed).passed


def test_files_that_are_not_there_are_named(shipped, tmp_path):
    with pytest.raises(FixArgumentsError, match="there is no privacy statement at"):
        verify(tmp_path / "none.json")
    with pytest.raises(FixArgumentsError, match="there is no model at"):
        verify(shipped, model=tmp_path / "none")
    with pytest.raises(FixArgumentsError, match="there is no ledger at"):
        verify(shipped, ledger=tmp_path)


# Everything at once: whatever is changed, the statement fails or promises no more than before.

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0, 10),
    st.text(max_size=5),
    st.sampled_from(["example", "user", "REPLACE_ONE", "safetensors", "0" * 64, "complete"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
# No file can contradict these: `verify` lists them as not checked.
ON_TRUST = {
    ("tuning",),
    ("warnings",),
    ("versions",),
    ("mechanism", "settings"),
    ("arithmetic", "sums_and_noise"),
    ("arithmetic", "exact"),
    ("model", "parameters"),
    ("model", "frozen"),
    ("model", "format"),
}


def paths_of(value, path=()):
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in items:
            yield from paths_of(inner, (*path, name))


def changed_at(fields, path, value):
    if not path:
        return value
    new = copy.deepcopy(fields)
    node = new
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    return new


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_changed_field_is_found_or_harmless(exported, data, tmp_path):
    folder = tmp_path / "forged"
    if not folder.exists():
        shutil.copytree(exported, folder)
    fields = fields_of(exported)
    path = data.draw(st.sampled_from([path for path in paths_of(fields) if path]))
    value = data.draw(VALUES)
    new = changed_at(fields, path, value)
    text = json.dumps(new)
    if text == json.dumps(fields):
        return
    (folder / "privacy.json").write_text(text)
    assert not verify(folder).passed  # a careless edit
    if path == ("digest",):
        return  # a new digest would be the right one
    try:
        rewrite(folder, new)  # with a new digest
    except (BevelError, ValueError):
        return  # the statement cannot even be read
    if not verify(folder).passed:
        return
    promises_less = new["epsilon"] is None
    steps_back = path == ("run", "step") and value < fields["run"]["step"]
    assert promises_less or steps_back or any(path[: len(p)] == p for p in ON_TRUST), (path, value)

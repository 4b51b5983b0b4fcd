"""A statement is read as it was written, and every field that is not as it has to be is named."""

import json

import pytest
from shipping_statements import fields_of, rewrite

from bevel.errors import FixArgumentsError
from bevel.shipping import read_statement
from bevel.shipping.statement import parse_statement


def test_what_is_written_is_read(exported):
    statement = read_statement(exported)
    assert statement == read_statement(exported / "privacy.json")
    assert statement.text() == (exported / "privacy.json").read_text()
    assert statement.digest == statement.computed_digest()


def parsed(fields):
    return parse_statement(json.dumps(fields).encode())


def test_every_field_is_needed_and_no_other_is_allowed(exported):
    fields = fields_of(exported)
    for name in fields:
        with pytest.raises(FixArgumentsError, match=r"lacks|no field kind|has version None"):
            parsed({n: x for n, x in fields.items() if n != name})
        if isinstance(fields[name], dict) and name in ("run", "ledger", "model", "arithmetic"):
            for inner in fields[name]:
                less = {n: x for n, x in fields[name].items() if n != inner}
                with pytest.raises(FixArgumentsError, match=f"it lacks {name}.{inner}"):
                    parsed(fields | {name: less})
    with pytest.raises(FixArgumentsError, match=r"has the unknown '\\x1b\[2Jepsilon'"):
        parsed(fields | {"\x1b[2Jepsilon": 1.0})


WRONG = [
    ("epsilon", "1.0"),
    ("epsilon", 1),
    ("epsilon", True),
    ("epsilon", -1.0),
    ("delta", 0.0),
    ("delta", 1.0),
    ("delta", -1e-5),
    ("delta", None),
    ("unit", "household"),
    ("unit", None),
    ("relation", "ADD_OR_REMOVE"),
    ("budget", {"epsilon": 1.0}),
    ("budget", {"epsilon": 1.0, "delta": "x"}),
    ("key_is_secret", 1),
    ("key_is_secret", False),
    ("tuning", ["a"]),
    ("warnings", "a"),
    ("warnings", [1]),
    ("versions", {"trained": {}}),
    ("versions", {"trained": {"bevel": 1}, "exported": {}}),
    ("mechanism", []),
    ("mechanism.event", {"kind": "MyEvent"}),
    ("mechanism.event", {"kind": "GaussianDpEvent", "noise_multiplier": -1.0}),
    ("run.step", -1),
    ("run.step", 9),
    ("run.step", 10**40),
    ("run.step", 8.0),
    ("run.attempt", -1),
    ("run.name", None),
    ("run.ending", 3),
    ("ledger.lines", 0),
    ("ledger.head", "f" * 63),
    ("ledger.head", "F" * 64),
    ("ledger.sha256", ""),
    ("ledger.name", "../ledger.jsonl"),
    ("ledger.name", "/etc/passwd"),
    ("ledger.name", ""),
    ("ledger.name", "a\0b"),
    ("ledger.lines_of_run", [[2]]),
    ("ledger.lines_of_run", [[3, 2]]),
    ("ledger.lines_of_run", [[0, 5]]),
    ("ledger.lines_of_run", [[2, 99]]),
    ("ledger.lines_of_run", [2, 5]),
    ("model.format", "pickle"),
    ("model.files", {}),
    ("model.files", {"../x": "f" * 64}),
    ("model.files", {"model.safetensors": "f"}),
    ("model.files", {"/x": "f" * 64}),
    ("model.files", {"a\\b": "f" * 64}),
    ("model.files", {"a//b": "f" * 64}),
]


def changed(fields, name, value):
    outer, _, inner = name.partition(".")
    return fields | {outer: fields[outer] | {inner: value} if inner else value}


def test_wrong_types_and_values_are_named(exported):
    fields = fields_of(exported)
    for name, value in WRONG:
        with pytest.raises(FixArgumentsError) as raised:
            parsed(changed(fields, name, value))
        message = str(raised.value)
        assert name.split(".")[0] in message or "digest" in message or "Event" in message, message
        assert message.isprintable() and len(message) < 400


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{",
        b'{"kind": "bevel privacy statement", "kind": "bevel privacy statement"}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
    ],
    ids=["empty", "bytes", "list", "null", "open", "twice", "nan", "inf", "huge", "digits", "deep"],
)
@pytest.mark.fast
def test_what_is_not_json_is_refused(text):
    with pytest.raises(FixArgumentsError, match=r"it is not JSON|no field kind"):
        parse_statement(text)


def test_a_second_epsilon_is_refused(exported):
    text = (exported / "privacy.json").read_text()
    twice = text.replace('"delta"', '"epsilon": 0.1,\n  "delta"', 1)
    with pytest.raises(FixArgumentsError, match="the name 'epsilon' occurs twice"):
        parse_statement(twice.encode())


@pytest.mark.parametrize("version", [0, 2, 1.0, True, "1", None])
def test_other_versions_are_refused(exported, version):
    with pytest.raises(FixArgumentsError, match=r"has version .* this bevel reads version 1"):
        parsed(fields_of(exported) | {"version": version})


def test_errors_name_the_file(shipped, tmp_path):
    rewrite(shipped, fields_of(shipped) | {"epsilon": "none"}, digest=False)
    with pytest.raises(FixArgumentsError, match=r"privacy.json is not a valid .*field 'epsilon'"):
        read_statement(shipped)
    with pytest.raises(FixArgumentsError, match="there is no privacy statement at"):
        read_statement(tmp_path / "none")

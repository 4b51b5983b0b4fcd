"""Digests show each file that is missing, added or changed."""

import hashlib

from bevel.shipping.file_digests import difference, digests_of


def test_files_are_named_as_in_a_statement(tmp_path):
    single = tmp_path / "single"
    single.mkdir()
    (single / "model.safetensors").write_bytes(b"abc")
    (single / "privacy.json").write_bytes(b"{}")
    expected = {"model.safetensors": hashlib.sha256(b"abc").hexdigest()}
    assert digests_of(single) == digests_of(single / "model.safetensors") == expected
    several = tmp_path / "several"
    (several / "model" / "w").mkdir(parents=True)
    (several / "model" / "w" / "0").write_bytes(b"abc")
    expected = {"model/w/0": hashlib.sha256(b"abc").hexdigest()}
    assert digests_of(several) == digests_of(several / "model") == expected


def test_differences_are_named():
    assert difference({"a": "1", "b": "2"}, {"b": "2", "a": "1"}) == ""
    assert difference({"a": "1"}, {}) == "'a' is missing"
    assert difference({}, {"a": "1"}) == "'a' is not part of the model"
    assert difference({"\x1b": "1"}, {"\x1b": "2"}) == "'\\x1b' is another file"

"""The export file: names are loaded late, and all of them are there."""

import ast
import importlib
from pathlib import Path

import pytest

import bevel
from bevel import accounting

COMPATIBLE = {
    "dpsgd_event",
    "fixed_dpsgd_event",
    "truncated_dpsgd_event",
    "amplified_bandmf_event",
    "truncated_amplified_bandmf_event",
}


def test_names_are_those_that_type_checkers_see():
    source = ast.parse(Path(accounting.__file__).read_text())
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    seen = {
        alias.asname: statement.module.rpartition(".")[2]
        for statement in block.body
        for alias in statement.names
    }
    assert seen == accounting.MODULE_OF
    assert set(accounting.MODULE_OF) >= COMPATIBLE


@pytest.mark.parametrize("name", sorted(accounting.MODULE_OF))
def test_every_name_is_there(name):
    module = importlib.import_module(f"bevel.accounting.{accounting.MODULE_OF[name]}")
    assert getattr(bevel.accounting, name) is getattr(module, name)
    assert name in dir(accounting)
    assert name not in {path.stem for path in Path(accounting.__file__).parent.glob("*.py")}


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = accounting.nothing

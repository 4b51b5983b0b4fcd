"""Names and defaults of `bevel.optimizers`: those that users of JAX Privacy write."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import bevel
from bevel import optimizers


def test_names_are_those_that_type_checkers_see():
    source = ast.parse(Path(optimizers.__file__).read_text())
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    seen = {
        alias.asname: statement.module.rpartition(".")[2]
        for statement in block.body
        for alias in statement.names
    }
    assert seen == optimizers.MODULE_OF
    assert bevel.optimizers is optimizers


@pytest.mark.parametrize("name", sorted(optimizers.MODULE_OF))
def test_every_name_is_there(name):
    module = importlib.import_module(f"bevel.optimizers.{optimizers.MODULE_OF[name]}")
    assert getattr(optimizers, name) is getattr(module, name)
    assert name in dir(optimizers)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = optimizers.nothing


def test_signatures():
    scale = inspect.signature(optimizers.scale_then_privatize).parameters
    assert {name: p.default for name, p in scale.items()} == {
        "base_optimizer": inspect.Parameter.empty,
        "eps": 1e-8,
        "eps_root": 0.0,
        "extract_preconditioner_from_state_fn": None,
    }
    assert list(inspect.signature(optimizers.as_augmented_optimizer).parameters) == ["optimizer"]
    fields = optimizers.AugmentedGradientTransformation._fields
    assert fields == ("init", "update", "pre_clipping_transform")

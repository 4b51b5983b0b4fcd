"""Packages whose names are loaded when they are first used."""

import subprocess
import sys

import pytest

import bevel

LAZY_PACKAGES = ["accounting", "execution_plan", "optimizers", "training"]


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_unknown_names_are_attribute_errors_and_known_ones_are_listed(package):
    module = getattr(bevel, package)
    with pytest.raises(AttributeError, match=f"'bevel.{package}' has no attribute 'no_such'"):
        _ = module.no_such
    assert set(module.MODULE_OF) <= set(dir(module))


def test_a_name_is_loaded_once_and_not_before_it_is_used():
    code = (
        "import sys, bevel.optimizers as o; assert 'optax' not in sys.modules;"
        "assert 'dp_adam' not in vars(o); first = o.dp_adam;"
        "assert 'optax' in sys.modules and vars(o)['dp_adam'] is first"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

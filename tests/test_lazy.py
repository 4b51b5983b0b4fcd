"""Names and modules are imported when they are first used."""

import subprocess
import sys

import pytest

from bevel.errors import InstallExtraError
from bevel.lazy import LazyModule, optional_module


def test_a_name_is_loaded_once_and_not_before_it_is_used():
    code = (
        "import sys, bevel.optimizers as o; assert 'optax' not in sys.modules;"
        "assert 'dp_adam' not in vars(o); first = o.dp_adam;"
        "assert 'optax' in sys.modules and vars(o)['dp_adam'] is first"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_lazy_module_is_the_module():
    import json

    lazy = LazyModule("json")
    assert lazy and lazy.dumps is json.dumps


def test_a_lazy_module_that_is_not_installed_is_false():
    assert not LazyModule("no_such_module")


def test_threads_may_load_names_at_the_same_time():
    code = (
        "import threading, bevel; failures = []; barrier = threading.Barrier(4)\n"
        "def load(name):\n"
        "    barrier.wait()\n"
        "    try: getattr(bevel, name)\n"
        "    except BaseException as error: failures.append(error)\n"
        "names = ['clipped_grad', 'report', 'sharding', 'noise_addition']\n"
        "threads = [threading.Thread(target=load, args=[name]) for name in names]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; assert not failures, failures"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


BLOCKED = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run_without(missing, code):
    """Runs code in a process in which a package is not installed."""
    text = BLOCKED.format(missing=missing) + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_a_name_whose_extra_is_missing_says_what_to_install():
    code = """
from bevel.errors import BevelError
try:
    from bevel.training import Trainer
except ImportError as error:
    assert isinstance(error, BevelError) and error.name == "orbax"
    print(error)
from bevel.training import RunOptions  # needs no extra
"""
    run = run_without("orbax", code)
    said = "bevel.training.Trainer needs orbax, which is not installed: pip install 'bevel[train]'."
    assert (run.stdout.strip(), run.returncode) == (said, 0), run.stderr[-2000:]


@pytest.mark.parametrize(
    "missing, line",
    [
        ("orbax", "train examples/digits.toml"),
        ("sklearn", "explain examples/digits.toml"),
    ],
)
def test_a_command_whose_extra_is_missing_says_what_to_install(missing, line):
    run = run_without(missing, f"from bevel.cli import main; sys.exit(main({line.split()!r}))")
    assert run.returncode == 1
    assert f"{missing}, which is not installed: pip install 'bevel[train]'." in run.stderr
    assert "Traceback" not in run.stderr and len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "name, extra", [("safetensors", "train"), ("PIL", "train"), ("flax", "frameworks")]
)
def test_an_optional_module_says_what_to_install(name, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InstallExtraError, match=rf"export needs {name}.*'bevel\[{extra}\]'"):
        optional_module(name, "export")


def test_an_optional_module_that_is_installed_is_the_module():
    import json

    assert optional_module("json", "this test") is json
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        optional_module("no_such_module", "this test")

"""The public surface: what `__all__` lists is there, is typed, is documented, and loads little."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import bevel

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [
    ".".join(path.relative_to(ROOT).parent.parts)
    for path in sorted((ROOT / "bevel").rglob("__init__.py"))
]
# Only the package above them uses these.
INTERNAL = {f"bevel.clipping.{name}" for name in ("accumulate", "norms", "program", "uses")}
INTERNAL |= {"bevel.clipping.norms.kernels", "bevel.inspection.checks"}
# Modules that show the names of other packages.
FACADES = ("bevel.sharding.processes", "bevel.sharding.simulate")
# Packages that take long to import, or that a user may not have.
HEAVY = {"optax", "scipy", "dp_accounting", "orbax", "grain", "flax", "matplotlib"}
HEAVY |= {
    "equinox",
    "keras",
    "jinja2",
    "sklearn",
    "tensorboardX",
    "rich",
    "jax.experimental.pallas",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_lists_its_names(package):
    module = importlib.import_module(package)
    names = module.__all__
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(module, name) is not None
        assert name in dir(module)
    assert not [name for name in names if name.startswith("_")]
    assert ("This package is internal" in module.__doc__) == (package in INTERNAL)


STUBS = sorted((ROOT / "bevel").rglob("__init__.pyi"))


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: path.parent.name)
def test_what_type_checkers_see_is_what_is_imported(stub):
    """Each name is that of the module it is defined in; no module of the package hides it."""
    package = importlib.import_module(".".join(stub.relative_to(ROOT).parent.parts))
    nodes = [n for n in ast.parse(stub.read_text()).body if isinstance(n, ast.ImportFrom)]
    names = [(node.module, alias) for node in nodes for alias in node.names]
    assert [alias.name for _, alias in names] == package.__all__
    for module, alias in names:
        assert alias.asname == alias.name  # so that type checkers take it as exported
        if module == package.__name__:
            continue
        assert getattr(package, alias.name) is getattr(importlib.import_module(module), alias.name)


def test_dir_shows_the_public_names_only():
    shown = [name for name in dir(bevel) if not name.startswith("__")]
    assert shown == sorted(bevel.__all__)


@pytest.mark.parametrize("name", FACADES)
def test_facades_show_the_public_names_only(name):
    module = importlib.import_module(name)
    assert [n for n in dir(module) if not n.startswith("__")] == sorted(module.__all__)


def test_unknown_names_are_attribute_errors():
    for module in (bevel, bevel.accounting, bevel.sharding, bevel.training):
        with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'no_such'"):
            _ = module.no_such


def test_import_is_light():
    """`import bevel` takes no longer than `import jax`; what is heavy is imported on first use."""
    code = "import sys, bevel; print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert not HEAVY & loaded, f"`import bevel` loads {sorted(HEAVY & loaded)}"
    assert len([name for name in loaded if name.startswith("bevel")]) < 5


def test_clipping_and_noise_load_no_kernels_and_no_optimizers():
    code = "import sys, bevel; bevel.clipped_grad, bevel.gaussian_privatizer; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    loaded = HEAVY & set(run.stdout.split())
    assert not loaded, f"clipping and noise load {sorted(loaded)}"


def test_mypy_sees_the_types_from_outside(tmp_path):
    """A program that uses the top-level names, checked as by its author."""
    mypy_api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(
        "import bevel\n"
        "reveal_type(bevel.clipped_grad)\n"
        "reveal_type(bevel.DPSGDConfig)\n"
        "reveal_type(bevel.Trainer)\n"
        "reveal_type(bevel.gaussian_privatizer)\n"
        "reveal_type(bevel.sharding.describe)\n"
        "bevel.clipped_grad(lambda p, x: p, l2_clip_norm=1.0, no_such_option=1)\n"
    )
    settings = tmp_path / "mypy.ini"
    # Types of other packages are not read: that takes three times as long.
    others = ",".join(
        f"{name}.*" for name in ("jax", "jaxlib", *sorted(HEAVY - {"jax.experimental.pallas"}))
    )
    settings.write_text(
        "[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n"
        f"[mypy-{others}]\nfollow_imports = skip\n"
    )
    options = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache")]
    out, _, _ = mypy_api.run([*options, str(program)])
    revealed = [line for line in out.splitlines() if "Revealed type" in line]
    assert len(revealed) == 5 and not [line for line in revealed if '"Any"' in line], out
    assert "no_such_option" in out and (ROOT / "bevel" / "py.typed").exists()

"""`bevel bench` finds the benchmark of a checkout, or says that there is none."""

import pytest

import bevel
from bevel.cli import bench, main
from bevel.errors import FixArgumentsError


def test_the_checkout_has_it():
    assert bench.script().is_file()


def test_options_are_passed_on_and_the_code_comes_back(monkeypatch, tmp_path, capfd):
    file = tmp_path / "clipping.py"
    file.write_text("import sys; print(sys.argv[1:]); sys.exit(4)")
    monkeypatch.setattr(bench, "script", lambda: file)
    assert main(["bench", "--cases", "mlp"]) == 4
    assert "['--cases', 'mlp']" in capfd.readouterr().out


def test_an_installed_package_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(bevel, "__file__", str(tmp_path / "bevel" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FixArgumentsError, match="in bevel's repository"):
        bench.script()

"""A function is found and called, or an error says what is wrong with the file, and where."""

import pytest
from model_specs import TABLE

from bevel.errors import FixArgumentsError, FixLossError
from bevel.models.python_function import model_function

FILE = """
import dataclasses
from beside_it import VALUE

@dataclasses.dataclass
class Made:
    data: object
    key: object = None

def build(data):
    return data.classes + VALUE

def with_key(data, key):
    return key

def old(shape, classes):
    return 0

def fails(data):
    return 1 / (data.classes - 3)

value = 3
"""


@pytest.fixture(name="folder")
def fixture_folder(tmp_path):
    (tmp_path / "model.py").write_text(FILE)
    (tmp_path / "beside_it.py").write_text("VALUE = 10\n")
    return tmp_path


def call(location):
    return model_function(location)(TABLE, key=lambda: "a key", rngs=lambda: 1 / 0)


def test_a_function_gets_the_description_and_what_it_has_a_parameter_for(folder):
    assert call(f"{folder}/model.py:build") == 13
    assert call(f"{folder}/model.py:with_key") == "a key"
    made = call(f"{folder}/model.py:Made")
    assert (made.data, made.key) == (TABLE, "a key")


def test_two_files_of_one_name_are_two_modules(folder):
    (folder / "other").mkdir()
    (folder / "other" / "model.py").write_text("def build(data):\n    return 'other'\n")
    assert call(f"{folder}/model.py:build") == 13
    assert call(f"{folder}/other/model.py:build") == "other"


def test_a_module_that_can_be_imported(folder, monkeypatch):
    (folder / "importable_for_this_test.py").write_text("def build(data):\n    return 'made'\n")
    monkeypatch.syspath_prepend(folder)
    assert call("importable_for_this_test:build") == "made"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model", r"write 'file.py:function', such as 'mine.py:build'"),
        ("model.py:", r"write 'file.py:function'"),
        ("modle.py:build", r"no file .*modle.py. Did you mean 'model.py'\? Paths are relative to"),
        ("model.py:biuld", r"has no function 'biuld'. Did you mean 'build'\?"),
        ("model.py:value", r"has no function 'value'"),
        ("model.py:old", r"takes \(shape, classes\), but it is called as old\(data\), old\(data, "),
        ("no_such_package.part:build", r"no module 'no_such_package'. Write 'file.py:function'"),
    ],
)
def test_what_cannot_be_found_or_called(folder, name, message):
    location = name if name.startswith(("no_such", "model:")) else f"{folder}/{name}"
    with pytest.raises(FixArgumentsError, match=message) as caught:
        call(name if ":" not in name else location)
    assert str(caught.value).startswith("[model] module")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import jax\ndef build(data:\n    pass\n", r"syntax error at bad.py, line 2: .*def build"),
        ("\n\nimport flaxx\n", r"ModuleNotFoundError at bad.py, line 3: No module .*check the nam"),
        ("import keras.nope\n", r"line 1: No module named 'keras.nope'. Run: pip install 'bevel\["),
        ("x = 1\nx.y\n", r"importing it raised AttributeError at bad.py, line 2: 'int' object"),
        ("raise SystemExit(3)\n", r"importing it raised SystemExit at bad.py, line 1: 3"),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path, code, message):
    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(FixArgumentsError, match=message) as caught:
        call(f"{tmp_path}/bad.py:build")
    assert len(str(caught.value).splitlines()) == 1


def test_an_exception_of_the_function_names_its_line(folder):
    with pytest.raises(FixLossError, match=r"raised ZeroDivisionError at model.py, line 20: div"):
        call(f"{folder}/model.py:fails")


def test_errors_of_the_library_say_which_model_they_are_about(folder):
    function = model_function(f"{folder}/model.py:build")

    def refuse():
        raise FixLossError("BatchNorm is refused.")

    with pytest.raises(FixLossError, match=r"^\[model\] module .*model.py:build: BatchNorm is ref"):
        function.run("it", refuse)

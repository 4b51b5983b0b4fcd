"""Keras is optional, and has to run on JAX."""

import importlib.util
import os
import subprocess
import sys

import pytest
from keras_models import keras

from bevel.errors import FixArgumentsError
from bevel.keras_api.backend import check_backend


def test_the_jax_backend_is_accepted():
    assert keras.backend.backend() == "jax"
    check_backend()


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(FixArgumentsError, match=r"the torch backend.*KERAS_BACKEND'\] = 'jax'"):
        check_backend()


def run(program, **environment):
    command = [sys.executable, "-c", program]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout


def test_without_keras_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['keras'] = None\n"
        "import bevel as jax_privacy\n"
        "print(jax_privacy.keras_api.DPKerasConfig.__name__)\n"
        "try:\n    jax_privacy.keras_api.make_private\n"
        "except ImportError as error:\n    print(error)\n"
    )
    printed = run(program)
    assert "DPKerasConfig" in printed and "pip install 'bevel[frameworks]'" in printed


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="has TensorFlow")
def test_without_the_default_backend_the_error_says_which_to_choose():
    program = (
        "try:\n    from bevel.keras_api import make_private\n"
        "except ImportError as error:\n    print(error)\n"
    )
    printed = run(program, KERAS_BACKEND="tensorflow")
    assert "KERAS_BACKEND=jax before the first import of keras" in printed

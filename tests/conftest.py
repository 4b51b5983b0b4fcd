"""Settings that must be in place before any test touches a jax array."""

import os
import signal
import sys

import hypothesis
import jax
import pytest

# The options --fast and --rest.
from selection import pytest_addoption as pytest_addoption
from selection import pytest_collection_modifyitems as pytest_collection_modifyitems
from selection import pytest_configure as pytest_configure

os.environ["KERAS_BACKEND"] = "jax"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tests started in the background of a shell inherit ignored interrupts; so would their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("bevel", derandomize=True, deadline=None)
hypothesis.settings.load_profile("bevel")


@pytest.fixture(autouse=True)
def keys_of_this_test_alone():
    """Forgets the noise keys of this test: a process refuses a key that is already in use."""
    yield
    keys = sys.modules.get("bevel.noise_addition.keys")
    if keys is not None:
        keys._claimed.clear()

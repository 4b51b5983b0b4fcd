"""Settings that have to be in place before any test touches a jax array."""

import signal
import sys

import hypothesis
import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A shell that starts tests in the background lets them, and what they start, ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("bevel", derandomize=True, deadline=None)
hypothesis.settings.load_profile("bevel")


@pytest.fixture(autouse=True)
def keys_of_this_test_alone():
    """Tests take the same few keys, and a process refuses a key that it has seen in another use."""
    yield
    keys = sys.modules.get("bevel.noise_addition.keys")
    if keys is not None:
        keys._claimed.clear()

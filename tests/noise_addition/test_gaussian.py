"""The arguments of Gaussian privatizers."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_layouts import threefry_key

import bevel
from bevel.errors import FixArgumentsError
from bevel.noise_addition import (
    SupportedStrategies,
    gaussian_privatizer,
    matrix_factorization_privatizer,
)


@pytest.mark.parametrize(
    "stddev, message",
    [
        (-1.0, r"stddev=-1.0: pass a finite number of at least 0"),
        (float("nan"), "stddev=nan"),
        (float("inf"), "stddev=inf"),
        (1e-45, "stddev=1e-45: noise of this scale would underflow"),
        (1e39, "stddev=1e.39: noise of this scale"),
        ("1", "stddev='1': pass a number"),
        (True, "stddev=True"),
        (None, "stddev=None"),
        (np.ones(2), r"stddev=array"),
    ],
)
def test_invalid_stddevs_are_refused(stddev, message):
    for make in (gaussian_privatizer, lambda **k: matrix_factorization_privatizer(np.eye(2), **k)):
        with pytest.raises(FixArgumentsError, match=message):
            make(stddev=stddev, prng_key=0)


@pytest.mark.parametrize("stddev", [0, 2, 1.5, np.float32(1.5), jnp.float32(1.5), np.array(1.5)])
def test_a_stddev_is_any_concrete_number(stddev):
    assert gaussian_privatizer(stddev=stddev, prng_key=0).record.stddev == float(stddev)


def test_a_traced_stddev_is_refused():
    def step(stddev):
        gaussian_privatizer(stddev=stddev, prng_key=0)
        return stddev

    with pytest.raises(FixArgumentsError, match="stddev is traced"):
        jax.eval_shape(step, 1.0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dtype": np.int32}, "dtype=int32: pass a real floating-point dtype"),
        ({"dtype": np.complex64}, "dtype=complex64"),
        ({"dtype": "wide"}, "dtype='wide': pass a dtype"),
        ({"dtype": np.float64}, "dtype=float64 needs jax.config.update"),
        ({"intermediate_strategy": "zero"}, "intermediate_strategy='zero': pass Supported"),
        ({"prng_key": np.zeros(2, np.uint32)}, "legacy key"),
    ],
)
def test_other_arguments_that_are_wrong(options, message):
    with pytest.raises(FixArgumentsError, match=message):
        gaussian_privatizer(**{"stddev": 1.0, "prng_key": 0, **options})


def test_buffers_are_on_the_device_or_on_the_host():
    with pytest.raises(FixArgumentsError, match="buffers_in='disk': write 'device' or 'host'"):
        matrix_factorization_privatizer(np.eye(2), stddev=1.0, prng_key=0, buffers_in="disk")


@pytest.mark.parametrize("function", [gaussian_privatizer, matrix_factorization_privatizer])
def test_keywords_are_those_of_jax_privacy(function):
    parameters = inspect.signature(function).parameters
    known = {"stddev": inspect.Parameter.empty, "prng_key": None, "dtype": None}
    known["intermediate_strategy"] = SupportedStrategies.DEFAULT
    for name, default in known.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is default


def test_where_the_names_are():
    assert bevel.noise_addition.gaussian_privatizer is gaussian_privatizer
    assert [s.name for s in SupportedStrategies] == ["DEFAULT", "ZERO"]


def test_the_identity_matrix_is_independent_noise():
    g = np.ones((4, 8), np.float32)
    plain = gaussian_privatizer(stddev=2.0, prng_key=threefry_key(5))
    identity = matrix_factorization_privatizer(np.eye(3), stddev=2.0, prng_key=threefry_key(5))
    np.testing.assert_allclose(
        identity.update(g, identity.init(g))[0],
        plain.update(g, plain.init(g))[0],
        rtol=1e-6,
        atol=1e-6,
    )

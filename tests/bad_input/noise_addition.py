"""`bevel.noise_addition`."""

import jax
import numpy as np
from bad_input.clipping import DTYPE, in_x64
from bad_input.domains import (
    ANYTHING,
    AT_LEAST_0,
    POSITIVE,
    Domain,
    either,
    instance,
    integer,
    number,
    one_of,
    optional,
)
from bad_input.rows import row

from bevel import noise_addition as na

STDDEV = either(AT_LEAST_0)
KEY = Domain("a key", lambda v: None if isinstance(v, jax.Array) else False) | either(
    optional(integer(0, 2**64 - 1))
)
MATRIX = Domain(
    "a square matrix",
    lambda v: (
        isinstance(v, np.ndarray)
        and not isinstance(v, np.ma.MaskedArray)
        and v.dtype.kind in "iuf"
        and v.ndim == 2
        and None
    ),
)
SHARED = {
    "prng_key": (KEY, 5),
    "dtype": (DTYPE, None),
    "intermediate_strategy": (
        instance(na.SupportedStrategies),
        na.SupportedStrategies.DEFAULT,
    ),
    "specs": (ANYTHING, None),
}
ROWS = [
    row(
        "gaussian_privatizer",
        na.gaussian_privatizer,
        stddev=(STDDEV, 1.0),
        **SHARED,
    ),
    row(
        "matrix_factorization_privatizer",
        na.matrix_factorization_privatizer,
        noising_matrix=(MATRIX, np.eye(3)),
        stddev=(STDDEV, 1.0),
        buffers_in=(one_of("device", "host"), "device"),
        **SHARED,
    ),
    row(
        "discrete_gaussian_privatizer",
        lambda **options: in_x64(na.discrete_gaussian_privatizer, **options),
        stddev=(either(number(1, 2**26, "lr")), 4),
        prng_key=(KEY, 5),
        grid_step=(either(optional(POSITIVE)), None),
        dtype=(DTYPE, None),
        specs=(ANYTHING, None),
    ),
    row("zcdp_rho", na.zcdp_rho, stddev=(POSITIVE, 4.0), sensitivity=(AT_LEAST_0, 1.0)),
    row(
        "keys.new_key",
        na.keys.new_key,
        generator=(one_of("chacha20", "threefry2x32"), "chacha20"),
    ),
]


EXEMPT = {
    "state_specs": "takes the state and the parameters of a run",
    "SupportedStrategies": "an enumeration",
    "NoiseState": "a pytree of arrays, which JAX makes from anything",
}

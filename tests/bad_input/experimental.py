"""`bevel.experimental` and `bevel.sharding_utils`."""

import numpy as np
from bad_input.domains import AT_LEAST_0, INSIDE, Domain, either, integer, optional
from bad_input.rows import made, row

from bevel import sharding_utils
from bevel.experimental import compilation_utils, discrete_gaussian
from bevel.experimental.monte_carlo import delta_calculation

COUNT = integer(1)
SAMPLES = either(integer(1, 2 * 10**20))
DTYPE = Domain("a dtype", lambda v: None)
SIZES = Domain("sizes", lambda v: None)
SIZE = either(integer(0, 2**27)) | Domain(
    "a shape", lambda v: None if isinstance(v, tuple) else False
)
ROWS = [
    row(
        "discrete_gaussian.sample_discrete_gaussian",
        discrete_gaussian.sample_discrete_gaussian,
        rng=(Domain("a generator", lambda v: False), made(lambda: np.random.default_rng(0))),
        sigma=(either(AT_LEAST_0), 2.0),
        size=(SIZE, 3),
        oversample=(optional(COUNT), None),
        dtype=(DTYPE, np.int64),
    ),
    row(
        "monte_carlo.get_overall_delta",
        delta_calculation.get_overall_delta,
        num_samples=(SAMPLES, 1000),
        base_delta=(either(INSIDE), 1e-3),
    ),
    row(
        "monte_carlo.minimum_samples_to_calibrate",
        delta_calculation.minimum_samples_to_calibrate,
        base_delta=(either(INSIDE), 1e-3),
        target_delta=(either(INSIDE), 1e-2),
    ),
    row(
        "monte_carlo.get_base_delta",
        delta_calculation.get_base_delta,
        num_samples=(SAMPLES, 100_000),
        target_delta=(either(INSIDE), 1e-2),
    ),
    row(
        "compilation_utils.optimal_physical_batch_sizes",
        compilation_utils.optimal_physical_batch_sizes,
        batch_sizes=(SIZES, [3, 5, 8]),
        num_compilations=(either(COUNT), 2),
    ),
    row(
        "compute_early_stopping_order",
        sharding_utils.compute_early_stopping_order,
        "batch_size microbatch_size",
        batch_size=(integer(0, 2**24), 8),
        microbatch_size=(optional(COUNT), 4),
    ),
]
EXEMPT = {}

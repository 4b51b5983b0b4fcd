"""Configs of every kind, small: a new row joins all tests of what plans have in common."""

from bevel.batch_selection import PartitionType
from bevel.execution_plan import (
    AdaptiveClipping,
    BandMFConfig,
    BLTConfig,
    DPSGDConfig,
    PlanSecrets,
)

N, STEPS, NOISE = 60, 12, 1.5
COEFS = (1.0, 0.5, 0.25)
BUFFERS = {"buf_decay": (0.75, 0.25), "output_scale": (0.25, 0.125)}
USERS = {"unit": "user", "examples_per_user_per_batch": 2}

CONFIGS = {
    "dpsgd": DPSGDConfig(N, 10, STEPS, noise_multiplier=NOISE),
    "dpsgd_replace_one": DPSGDConfig(
        N, 10, STEPS, noise_multiplier=NOISE, neighboring_relation="REPLACE_ONE"
    ),
    "dpsgd_users": DPSGDConfig(N, 10, STEPS, noise_multiplier=NOISE, **USERS),
    "dpsgd_adaptive": DPSGDConfig(
        N, 10, STEPS, noise_multiplier=NOISE, adaptive_clipping=AdaptiveClipping()
    ),
    "truncated": DPSGDConfig(
        N,
        10,
        STEPS,
        truncated_batch_size=11,
        noise_multiplier=NOISE,
        neighboring_relation="REPLACE_SPECIAL",
    ),
    "fixed": DPSGDConfig(
        N, 10, STEPS, "fixed", noise_multiplier=NOISE, neighboring_relation="REPLACE_ONE"
    ),
    "balls_in_bins": DPSGDConfig(N, 10, STEPS, "balls_in_bins", noise_multiplier=NOISE),
    "random_allocation": DPSGDConfig(N, 10, STEPS, "random_allocation", noise_multiplier=NOISE),
    "bandmf": BandMFConfig(STEPS, 2.0, COEFS, num_examples=N, noise_multiplier=NOISE),
    "bandmf_one_band": BandMFConfig(STEPS, 2.0, (1.0,), num_examples=N, noise_multiplier=NOISE),
    "bandmf_normalized": BandMFConfig(
        STEPS,
        2.0,
        COEFS,
        num_examples=N,
        column_normalize=True,
        noise_multiplier=NOISE,
        adaptive_clipping=AdaptiveClipping(count_stddev=2),
    ),
    "bandmf_independent": BandMFConfig(
        STEPS,
        2.0,
        COEFS,
        num_examples=N,
        partition_type=PartitionType.INDEPENDENT,
        noise_multiplier=NOISE,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ),
    "bandmf_truncated": BandMFConfig(
        STEPS, 2.0, COEFS, num_examples=N, truncated_batch_size=11, noise_multiplier=NOISE
    ),
    "bandmf_balls_in_bins": BandMFConfig(
        STEPS, 2.0, COEFS, num_examples=N, sampling="balls_in_bins", noise_multiplier=NOISE
    ),
    "blt": BLTConfig(N, 10, STEPS, 4, **BUFFERS, noise_multiplier=NOISE),
    "blt_cyclic": BLTConfig(
        N,
        10,
        STEPS,
        4,
        **BUFFERS,
        sampling="cyclic_poisson",
        noise_multiplier=NOISE,
        neighboring_relation="REPLACE_ONE",
    ),
    "blt_balls_in_bins": BLTConfig(
        N, 15, STEPS, 4, **BUFFERS, sampling="balls_in_bins", noise_multiplier=NOISE
    ),
}
BY_SAMPLING = {"balls_in_bins", "random_allocation", "bandmf_balls_in_bins"}


def plan(name, seed=0, flags=None):
    return CONFIGS[name].make(flags, secrets=PlanSecrets.for_tests(seed))

"""`bevel.execution_plan`."""

import dp_accounting
import jax.numpy as jnp
from bad_input.domains import (
    ANYTHING,
    FLAG,
    POSITIVE,
    PROBABILITY,
    Domain,
    array,
    either,
    instance,
    integer,
    number,
    one_of,
    optional,
    sequence,
)
from bad_input.rows import made, row

from bevel import batch_selection as bs
from bevel import execution_plan as ep
from bevel.accounting import Budget
from bevel.noise_addition import SupportedStrategies

COUNT = integer(1)
RELATIONS = ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL")
RELATION = either(one_of(*RELATIONS)) | Domain(
    "a relation", lambda v: None if isinstance(v, dp_accounting.NeighboringRelation) else False
)
SCALAR = either(number())
COEFS = sequence(number()) | array("f") | array("iu")
PLAN = ep.DPSGDConfig(100, 10.0, 5, noise_multiplier=1.0).make()
SHARED = {
    "noise_multiplier": (optional(POSITIVE), 1.0),
    "l2_clip_norm": (POSITIVE, 1.0),
    "rescale_to_unit_norm": (FLAG, True),
    "unit": (either(one_of("example", "user")), "user"),
    "examples_per_user_per_batch": (either(optional(integer(1, 2**24))), 2),
    "shuffle_per_user": (FLAG, False),
    "neighboring_relation": (RELATION, "REPLACE_SPECIAL"),
    "adaptive_clipping": (optional(instance(ep.AdaptiveClipping)), None),
    "target": (Domain("None", lambda v: v is None), None),
}
DTYPE = Domain("a dtype", lambda v: None if v is None else _is_float_dtype(v))


def _is_float_dtype(value):
    """None is not promised: what JAX takes for a dtype is a long list."""
    try:
        return None if jnp.issubdtype(jnp.dtype(value), jnp.floating) else False
    except Exception:
        return False


ROWS = [
    row(
        "DPSGDConfig",
        ep.DPSGDConfig,
        "expected_batch_size num_examples truncated_batch_size sampling",
        num_examples=(COUNT, 100),
        expected_batch_size=(POSITIVE, 10.0),
        iterations=(COUNT, 5),
        sampling=(one_of("poisson", "fixed", "balls_in_bins", "random_allocation"), "poisson"),
        truncated_batch_size=(optional(COUNT), 20),
        normalize_by=(optional(POSITIVE), None),
        **SHARED,
    ),
    row(
        "BandMFConfig",
        ep.BandMFConfig,
        "iterations expected_participations num_examples truncated_batch_size strategy "
        "column_normalize sampling",
        iterations=(COUNT, 8),
        expected_participations=(POSITIVE, 2.0),
        strategy=(COEFS | SCALAR, (1.0, 0.5)),
        normalize_by=(POSITIVE, 1.0),
        truncated_batch_size=(optional(COUNT), 20),
        num_examples=(optional(COUNT), 100),
        column_normalize=(FLAG, False),
        sampling=(one_of("cyclic_poisson", "balls_in_bins"), "cyclic_poisson"),
        partition_type=(instance(bs.PartitionType), bs.PartitionType.EQUAL_SPLIT),
        **SHARED,
    ),
    row(
        "BandMFConfig (columns of norm 1)",
        ep.BandMFConfig,
        "iterations expected_participations strategy",
        iterations=(COUNT, 8),
        expected_participations=(POSITIVE, 2.0),
        strategy=(COEFS | SCALAR, (1.0, 0.5)),
        column_normalize=(FLAG, True),
    ),
    row(
        "BLTConfig",
        ep.BLTConfig,
        "num_examples expected_batch_size min_sep buf_decay output_scale iterations sampling",
        num_examples=(COUNT, 100),
        expected_batch_size=(POSITIVE, 10.0),
        iterations=(COUNT, 20),
        min_sep=(COUNT, 10),
        buf_decay=(COEFS, (0.9, 0.5)),
        output_scale=(COEFS, (0.2, 0.1)),
        sampling=(one_of("min_sep", "cyclic_poisson", "balls_in_bins"), "min_sep"),
        normalize_by=(optional(POSITIVE), None),
        **SHARED,
    ),
    row(
        "DPSGDConfig.default",
        ep.DPSGDConfig.default,
        "all",
        num_examples=(COUNT, 100),
        expected_batch_size=(POSITIVE, 10.0),
        iterations=(COUNT, 5),
    ),
    row(
        "NonPrivateConfig",
        ep.NonPrivateConfig,
        iterations=(COUNT, 5),
        batch_size=(COUNT, 10),
        normalize_by=(optional(POSITIVE), None),
    ),
    row(
        "AdaptiveClipping",
        ep.AdaptiveClipping,
        target_quantile=(PROBABILITY, 0.5),
        learning_rate=(POSITIVE, 0.2),
        count_stddev=(optional(POSITIVE), None),
    ),
    row(
        "PerformanceFlags",
        ep.PerformanceFlags,
        dtype=(DTYPE, None),
        noise_seed=(either(optional(integer(-(2**200), 2**200))), None),
        intermediate_strategy=(instance(SupportedStrategies), SupportedStrategies.DEFAULT),
        microbatch_size=(optional(COUNT), None),
        spmd_axis_name=(ANYTHING, None),
        keep_batch_dim=(optional(FLAG), None),
        buffers_in=(one_of("device", "host"), "device"),
    ),
    row(
        "PlanSecrets",
        ep.PlanSecrets,
        root=(Domain("32 bytes", lambda v: isinstance(v, bytes) and len(v) == 32), b"x" * 32),
        generator=(one_of("chacha20", "threefry2x32"), "chacha20"),
        known=(FLAG, False),
    ),
    row(
        "PlanSecrets.for_tests",
        ep.PlanSecrets.for_tests,
        seed=(either(integer(-(2**200), 2**200)), 3),
    ),
    row(
        "PlanSecrets.new",
        ep.PlanSecrets.new,
        generator=(one_of("chacha20", "threefry2x32"), "chacha20"),
    ),
    row(
        "PlanSecrets.from_dict",
        ep.PlanSecrets.from_dict,
        saved=(Domain("saved secrets", lambda v: False), PLAN.secrets.to_dict()),
    ),
    row(
        "DPExecutionPlan",
        ep.DPExecutionPlan,
        "expected_batch_size",
        mechanism=(instance(type(PLAN.mechanism)), PLAN.mechanism),
        clip=(instance(type(PLAN.clip)), PLAN.clip),
        unit=(instance(type(PLAN.unit)), PLAN.unit),
        expected_batch_size=(optional(POSITIVE), 10.0),
        budget=(optional(instance(Budget)), None),
        flags=(instance(ep.PerformanceFlags), PLAN.flags),
        secrets=(instance(ep.PlanSecrets), made(lambda: ep.PlanSecrets.new())),
    ),
    row(
        "DPSGDConfig.make",
        ep.DPSGDConfig(100, 10.0, 5, noise_multiplier=1.0).make,
        performance_flags=(optional(instance(ep.PerformanceFlags)), None),
        secrets=(optional(instance(ep.PlanSecrets)), None),
    ),
]
EXEMPT = {"ExecutionPlanConfig": "a protocol"}

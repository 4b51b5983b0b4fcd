"""`bevel.clipping`, without calls: those trace and compile."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from bad_input.domains import (
    ANYTHING,
    FLAG,
    FUNCTION,
    POSITIVE,
    Domain,
    either,
    instance,
    integer,
    number,
    one_of,
    optional,
    sequence,
)
from bad_input.rows import made, row

from bevel import clipping
from bevel.clipping.bounded import TracedProgram
from bevel.clipping.options import MEMORY_MODES, WAYS

COUNT = integer(1)
INFINITE = Domain("infinity", lambda v: isinstance(v, float) and v == math.inf)
LENGTH = number(0, closed="l") | INFINITE | Domain("infinity", lambda v: _as_infinity(v))
POSITION = integer(-255, 255)
POSITIONS = POSITION | sequence(POSITION)
AXES = Domain(
    "names of axes",
    lambda v: (
        True
        if v is None
        else bool(v)
        if isinstance(v, str)
        else isinstance(v, list | tuple | set) and all(isinstance(n, str) and n for n in v)
    ),
)


def _as_infinity(value):
    return None if isinstance(value, int) and not isinstance(value, bool) and value > 0 else False


def _lengths(value):
    """Trees of lengths. Whether a tree fits is found at the call."""
    if isinstance(value, Iterator):
        return False
    leaves = jax.tree.leaves(value)
    if not leaves:
        return False
    verdicts = [LENGTH.judge(leaf) for leaf in leaves]
    return False if False in verdicts else None if None in verdicts else True


def _dtype(value):
    try:
        return None if value is None or jnp.issubdtype(jnp.dtype(value), jnp.floating) else False
    except Exception:
        return False


LENGTHS = Domain("clip norms", _lengths)
DTYPE = Domain("a dtype", _dtype)
MEMORY = one_of("auto", *MEMORY_MODES) | either(number(0, 2**53, "r"))
NORMS = one_of("auto", *WAYS) | Domain(
    "a dict of ways",
    lambda v: (
        isinstance(v, dict)
        and all(isinstance(k, str) and way in ("auto", *WAYS) for k, way in v.items())
    ),
)


def in_x64(make, **options):
    with jax.enable_x64(True):
        return make(**options)


def _loss(params, x):
    return (params * x).sum()


SHARED = {
    "batch_argnums": (POSITIONS, 1),
    "keep_batch_dim": (FLAG, True),
    "l2_clip_norm": (LENGTHS, 1.0),
    "rescale_to_unit_norm": (FLAG, False),
    "normalize_by": (POSITIVE, 2.0),
    "microbatch_size": (optional(COUNT), None),
    "nan_safe": (FLAG, True),
    "dtype": (DTYPE, None),
    "prng_argnum": (optional(POSITION), None),
    "spmd_axis_name": (ANYTHING, None),
    "automatic_gamma": (either(optional(number(1e-30, closed="l"))), None),
    "grid_scale": (either(optional(COUNT)), None),
    "engine": (one_of("auto", "vmap"), "auto"),
    "batch_axes": (AXES, None),
    "reduce_axes": (AXES, None),
}
ROWS = [
    row(
        "clipped_grad",
        clipping.clipped_grad,
        "argnums batch_argnums prng_argnum",
        fun=(FUNCTION, _loss),
        argnums=(POSITIONS, 0),
        has_aux=(FLAG, False),
        return_values=(FLAG, False),
        return_grad_norms=(FLAG, False),
        pre_clipping_transform=(FUNCTION, lambda tree: tree),
        norms=(NORMS, "auto"),
        memory=(MEMORY, "auto"),
        speed=(optional(instance(clipping.SpeedOptions)), None),
        **SHARED,
    ),
    row(
        "clipped_fun",
        clipping.clipped_fun,
        "batch_argnums prng_argnum",
        fun=(FUNCTION, _loss),
        has_aux=(FLAG, False),
        return_norms=(FLAG, False),
        **SHARED,
    ),
    row(
        "SpeedOptions",
        clipping.SpeedOptions,
        microbatch_size=(optional(COUNT), None),
        engine=(one_of("auto", "vmap"), "auto"),
        norms=(NORMS, "auto"),
        memory=(MEMORY, "auto"),
    ),
    row(
        "BoundedSensitivityCallable",
        clipping.BoundedSensitivityCallable,
        bounded_sensitivity_fun=(FUNCTION, _loss),
        l2_norm_bound=(LENGTH, 1.0),
        has_aux=(FLAG, False),
        result_dtype=(DTYPE, None),
        exact=(FLAG, False),
        program=(instance(TracedProgram), made(TracedProgram)),
        task=(ANYTHING, None),
    ),
    row(
        "BoundedSensitivityCallable.rounding_bound",
        clipping.BoundedSensitivityCallable(_loss, 1.0, False).rounding_bound,
        batch_size=(integer(0), 8),
        rows_per_example=(optional(COUNT), 2),
    ),
    row(
        "BoundedSensitivityCallable.sensitivity",
        clipping.BoundedSensitivityCallable(_loss, 1.0, False).sensitivity,
        neighboring_relation=(
            optional(one_of("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL")),
            None,
        ),
    ),
    row(
        "clip_pytree",
        clipping.clip_pytree,
        "clip_norm",
        pytree=(ANYTHING, np.ones(2, np.float32)),
        clip_norm=(LENGTHS, 1.0),
        rescale_to_unit_norm=(FLAG, False),
    ),
    row(
        "clip_and_round_to_grid",
        lambda **options: in_x64(clipping.clip_and_round_to_grid, **options),
        "all",
        gradient=(ANYTHING, np.ones(2, np.float32)),
        l2_clip_norm=(LENGTH, 1.0),
        grid_scale=(COUNT, 100),
    ),
]
MADE = "made by `explain` from a program: it holds what was found"
EXEMPT = {
    "explain": "takes the arguments of a call",
    "Aux": "a named tuple of results",
    "ClippedTreeAndNorm": "a named tuple of results",
    "AuxiliaryOutput": "a named tuple of results",
    "Explanation": MADE,
    "ParameterRow": MADE,
    "CompiledCost": MADE,
}

"""`bevel.training`: options and configurations. Runs are tested in `tests/training`."""

import jax
import optax
from bad_input.domains import (
    ANYTHING,
    FLAG,
    FUNCTION,
    INSIDE,
    NONE,
    PATH,
    POSITIVE,
    Domain,
    either,
    instance,
    integer,
    one_of,
    optional,
    sequence,
)
from bad_input.rows import row

from bevel import execution_plan as ep
from bevel import training
from bevel.accounting import Budget
from bevel.batch_selection import PaddedSizes

COUNT = integer(1)
TEXT = Domain("a string", lambda v: isinstance(v, str) and bool(v))
CHANGES = sequence(either(TEXT))
NAMED = Domain("named", lambda v: isinstance(v, dict) and all(isinstance(k, str) and k for k in v))
PATTERNS = either(TEXT | sequence(TEXT)) | FUNCTION
SHOWS = FLAG | NONE | instance(training.Progress)
CONFIG = ep.DPSGDConfig(100, 10.0, 5, noise_multiplier=1.0)
FITTED_SIZES = instance(PaddedSizes, training.PadToMultiple)


def _loss(params, data, prng):
    return (params * data).sum(), {}


ROWS = [
    row(
        "RunOptions",
        training.RunOptions,
        checkpoint_every=(COUNT, 100),
        budget=(optional(instance(Budget)), None),
        delta=(optional(INSIDE), None),
        ledger=(optional(PATH), None),
        anchor=(optional(PATH), None),
        name=(optional(TEXT), None),
        keep=(COUNT, 3),
        keep_period=(optional(COUNT), None),
        tensorboard=(FLAG, True),
        tuning=(one_of("unknown", "public"), "unknown"),
        settings=(NAMED, {}),
        accept=(CHANGES, ()),
        ahead=(integer(1, 2**10), 2),
        compilations=(integer(1, 100), 3),
        progress=(SHOWS, None),
    ),
    row("PadToMultiple", training.PadToMultiple, multiple=(integer(1, 2**24), 32)),
    row(
        "AutotuneMicrobatch",
        training.AutotuneMicrobatch,
        multiple=(integer(1, 2**24), 32),
        memory=(POSITIVE, 1.0),
    ),
    row(
        "Augmentation",
        training.Augmentation,
        augment=(FUNCTION, lambda data, prng: data),
        views=(integer(1, 2**20), 2),
    ),
    row(
        "LoRA",
        training.LoRA,
        match=(PATTERNS, "*/kernel"),
        rank=(COUNT, 8),
        alpha=(optional(POSITIVE), None),
        full=(PATTERNS, ()),
        base=(one_of("as given", "bfloat16", "int8"), "as given"),
        stacked=(integer(0), 0),
        seed=(integer(0, 2**32 - 1), 0),
    ),
    row(
        "DPTrainer",
        training.DPTrainer,
        "config performance_flags",
        config=(either(instance(ep.DPSGDConfig, ep.DPExecutionPlan)), CONFIG),
        loss_fn=(FUNCTION, _loss),
        optimizer=(ANYTHING, optax.sgd(0.1)),
        performance_flags=(optional(instance(ep.PerformanceFlags)), None),
        compilation_strategy=(optional(FITTED_SIZES), None),
        mesh=(optional(instance(jax.sharding.Mesh)), None),
        rules=(ANYTHING, "replicated"),
        batch_axes=(ANYTHING, None),
        trainable=(ANYTHING, None),
        augmentation=(optional(instance(training.Augmentation)), None),
        ema_decay=(optional(INSIDE), None),
        allow_coupled_examples=(FLAG, False),
    ),
]
STATE = "a pytree of arrays, which JAX makes from anything"
EXEMPT = {
    "load": "reads a run folder",
    "LossFn": "a protocol",
    "LossFnWithState": "a protocol",
    "RunInterrupted": "an exception",
    "LoadedRun": "made by `load`",
    "LoRABase": STATE,
    "Progress": "has no arguments",
    "ReleasedState": STATE,
    "TrainingState": STATE,
}

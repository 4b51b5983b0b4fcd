"""`bevel.tuning`. Searches are tested in `tests/tuning`."""

import dp_accounting
from bad_input.domains import (
    AT_LEAST_0,
    INSIDE,
    POSITIVE,
    Domain,
    either,
    instance,
    number,
    one_of,
    optional,
)
from bad_input.rows import row

from bevel import execution_plan, tuning

EVENT = instance(dp_accounting.DpEvent)
GAUSSIAN = dp_accounting.GaussianDpEvent(3.0)
TRIALS = (instance(tuning.TrialCount), tuning.TrialCount(3.0))
SCORED = (optional(EVENT), None)
RELATION = Domain(
    "a relation", lambda v: None if isinstance(v, dp_accounting.NeighboringRelation) else False
)
ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
CONFIG = execution_plan.DPSGDConfig(100, 10.0, 5, noise_multiplier=1.0)
END, POSITIVE_END = either(number()), either(POSITIVE)
ROWS = [
    row("Uniform", tuning.Uniform, "all", low=(END, 0.0), high=(END, 1.0)),
    row("LogUniform", tuning.LogUniform, "all", low=(POSITIVE_END, 0.1), high=(POSITIVE_END, 1.0)),
    row(
        "TrialCount",
        tuning.TrialCount,
        expected=(either(number(1, 10_000, "r")), 10.0),
        distribution=(either(one_of("logarithmic", "geometric", "poisson") | AT_LEAST_0), 1.0),
    ),
    row(
        "selection_event",
        tuning.selection_event,
        event=(either(EVENT), GAUSSIAN),
        trials=TRIALS,
        score_event=SCORED,
    ),
    row(
        "epsilon_of_search",
        tuning.epsilon_of_search,
        event=(either(EVENT), GAUSSIAN),
        trials=TRIALS,
        delta=(either(INSIDE), 1e-3),
        neighboring_relation=(RELATION, ADD_OR_REMOVE),
        score_event=SCORED,
    ),
]
EXEMPT = {
    "calibrated": "takes seconds: see tests/tuning/test_price.py",
    "OneOf": "takes any values",
    "Price": "made by a search",
    "TuningResult": "made by `tune`",
    "tune": "reads a folder and trains",
    "GridTrial": "made by `charged_grid`",
    "charged_grid": "reads a folder and trains",
}

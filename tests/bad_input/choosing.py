"""`bevel.choosing`."""

import numpy as np
from bad_input.domains import (
    INSIDE,
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

from bevel import choosing

COUNT = integer(1)
# Stands for a number that another one determines.
NAN = Domain("NaN", lambda v: None if isinstance(v, float | np.floating) and v != v else False)
TEXT = Domain("a string", lambda v: isinstance(v, str) and bool(v))
RELATION = either(one_of("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"))
REQUEST = choosing.Request(num_units=100, epsilon=1.0)
POINT = choosing.NoisePoint(10.0, 5, 1.0)
CURVE = choosing.NoiseCurve((POINT,), 0.1, None)
CHOICES = Domain(
    "a dict of choices",
    lambda v: isinstance(v, dict) and all(isinstance(x, choosing.ChosenNumber) for x in v.values()),
)
POINTS = Domain(
    "a tuple of points",
    lambda v: isinstance(v, tuple) and all(isinstance(x, choosing.NoisePoint) for x in v),
)
ROWS = [
    row(
        "Request",
        choosing.Request,
        "batch_size num_units delta epochs steps",
        num_units=(COUNT, 100),
        epsilon=(POSITIVE, 1.0),
        delta=(optional(INSIDE), 1e-4),
        unit=(one_of("example", "user"), "example"),
        batch_size=(optional(POSITIVE), 10.0),
        steps=(optional(COUNT), None),
        epochs=(optional(POSITIVE), None),
        clip_norm=(optional(POSITIVE), None),
        learning_rate=(optional(POSITIVE), None),
        parameters=(optional(COUNT), None),
        optimizer=(one_of("sgd", "adam", "dp_adam"), "sgd"),
        momentum=(number(0, 1, "l"), 0.9),
        relation=(RELATION, "REPLACE_ONE"),
    ),
    row("ChosenNumber", choosing.ChosenNumber, value=(number() | NAN, 1.0), reason=(TEXT, "given")),
    row(
        "NoisePoint",
        choosing.NoisePoint,
        batch_size=(POSITIVE, 10.0),
        steps=(COUNT, 5),
        noise_multiplier=(POSITIVE, 1.0),
    ),
    row(
        "NoiseCurve",
        choosing.NoiseCurve,
        points=(POINTS, (POINT,)),
        least=(POSITIVE, 0.1),
        epochs=(optional(POSITIVE), None),
    ),
    row(
        "Proposal",
        choosing.Proposal,
        request=(instance(choosing.Request), REQUEST),
        choices=(CHOICES, {}),
        curve=(instance(choosing.NoiseCurve), CURVE),
        point=(instance(choosing.NoisePoint), POINT),
    ),
]
EXEMPT = {"propose": "takes a `Request`, which is checked, and several seconds"}

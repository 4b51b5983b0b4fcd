"""`bevel.optimizers`."""

import optax
from bad_input.clipping import DTYPE
from bad_input.domains import (
    AT_LEAST_0,
    FUNCTION,
    Domain,
    array,
    either,
    instance,
    number,
    optional,
    sequence,
)
from bad_input.rows import row

from bevel import optimizers

DECAY = number(0, 1, "l")
ADAM = {
    "noise_stddev": (number(0, 1e18, "lr"), 0.1),
    "row_norms": (
        optional(either(array("fiu", least=0) | sequence(AT_LEAST_0, 1))),
        None,
    ),
    "b1": (DECAY, 0.9),
    "b2": (DECAY, 0.99),
    "eps": (AT_LEAST_0, 1e-8),
    "eps_root": (AT_LEAST_0, 0.0),
    "floor": (number(1e-12, closed="l"), 0.05),
    "mu_dtype": (DTYPE, None),
}
ROWS = [
    row("scale_by_dp_adam", optimizers.scale_by_dp_adam, **ADAM),
    row("dp_adam", optimizers.dp_adam, learning_rate=(either(number()) | FUNCTION, 1e-3), **ADAM),
    row(
        "scale_then_privatize",
        optimizers.scale_then_privatize,
        "eps eps_root",
        base_optimizer=(instance(optax.GradientTransformation), optax.adam(1e-3)),
        eps=(AT_LEAST_0, 1e-8),
        eps_root=(AT_LEAST_0, 1e-8),
        extract_preconditioner_from_state_fn=(optional(FUNCTION), None),
    ),
    row(
        "as_augmented_optimizer",
        optimizers.as_augmented_optimizer,
        optimizer=(Domain("an optimizer", lambda v: False), optax.sgd(0.1)),
    ),
]
EXEMPT = {
    "AugmentedGradientTransformation": "a named tuple of functions",
    "PreClippingTransform": "a protocol",
}

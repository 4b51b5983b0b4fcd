"""`bevel.keras_api`."""

from bad_input.domains import FLAG, INSIDE, POSITIVE, integer, optional
from bad_input.rows import row

from bevel import keras_api

COUNT = integer(1)
ROWS = [
    row(
        "DPKerasConfig",
        keras_api.DPKerasConfig,
        "batch_size gradient_accumulation_steps train_size microbatch_size",
        epsilon=(POSITIVE, 1.0),
        delta=(INSIDE, 1e-5),
        clipping_norm=(POSITIVE, 1.0),
        batch_size=(COUNT, 8),
        gradient_accumulation_steps=(COUNT, 1),
        train_steps=(COUNT, 10),
        train_size=(COUNT, 100),
        poisson_sampling_in_fit=(FLAG, False),
        noise_multiplier=(optional(POSITIVE), None),
        rescale_to_unit_norm=(FLAG, True),
        microbatch_size=(optional(COUNT), None),
        seed=(optional(integer(0, 2**128)), None),
    ),
]
EXEMPT = {
    "make_private": "takes a Keras model, which other tests check",
    "get_noise_multiplier": "takes a Keras model, which other tests check",
}

"""Names and defaults of `bevel.optimizers` are those of JAX Privacy."""

import inspect

from bevel import optimizers


def test_signatures():
    scale = inspect.signature(optimizers.scale_then_privatize).parameters
    assert {name: p.default for name, p in scale.items()} == {
        "base_optimizer": inspect.Parameter.empty,
        "eps": 1e-8,
        "eps_root": 0.0,
        "extract_preconditioner_from_state_fn": None,
    }
    assert list(inspect.signature(optimizers.as_augmented_optimizer).parameters) == ["optimizer"]
    fields = optimizers.AugmentedGradientTransformation._fields
    assert fields == ("init", "update", "pre_clipping_transform")

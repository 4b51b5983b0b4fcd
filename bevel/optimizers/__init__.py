"""Optimizers that know of clipping and noise, as transformations of optax.

Names are loaded when they are first used, so that `import bevel` does not load optax.
"""

from typing import TYPE_CHECKING

from bevel.lazy import loaded_when_used

if TYPE_CHECKING:
    from bevel.optimizers.augmented import (
        AugmentedGradientTransformation as AugmentedGradientTransformation,
    )
    from bevel.optimizers.augmented import PreClippingTransform as PreClippingTransform
    from bevel.optimizers.augmented import as_augmented_optimizer as as_augmented_optimizer
    from bevel.optimizers.bias_corrected import dp_adam as dp_adam
    from bevel.optimizers.bias_corrected import scale_by_dp_adam as scale_by_dp_adam
    from bevel.optimizers.preconditioned import scale_then_privatize as scale_then_privatize

PUBLIC = {
    "augmented": [
        "AugmentedGradientTransformation",
        "PreClippingTransform",
        "as_augmented_optimizer",
    ],
    "bias_corrected": ["dp_adam", "scale_by_dp_adam"],
    "preconditioned": ["scale_then_privatize"],
}
MODULE_OF = {name: module for module, names in PUBLIC.items() for name in names}

__getattr__, __dir__ = loaded_when_used(__name__, MODULE_OF)

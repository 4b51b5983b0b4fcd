"""Optimizers that know of clipping and noise, as transformations of optax.

Names are loaded when they are first used, so that `import bevel` does not load optax.
"""

from typing import TYPE_CHECKING

from bevel.lazy import lazy_exports

if TYPE_CHECKING:
    from bevel.optimizers.augmented import (
        AugmentedGradientTransformation as AugmentedGradientTransformation,
    )
    from bevel.optimizers.augmented import PreClippingTransform as PreClippingTransform
    from bevel.optimizers.augmented import as_augmented_optimizer as as_augmented_optimizer
    from bevel.optimizers.bias_corrected import dp_adam as dp_adam
    from bevel.optimizers.bias_corrected import scale_by_dp_adam as scale_by_dp_adam
    from bevel.optimizers.preconditioned import scale_then_privatize as scale_then_privatize

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".augmented": [
            "AugmentedGradientTransformation",
            "PreClippingTransform",
            "as_augmented_optimizer",
        ],
        ".bias_corrected": ["dp_adam", "scale_by_dp_adam"],
        ".preconditioned": ["scale_then_privatize"],
    },
)

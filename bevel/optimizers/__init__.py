"""Optimizers that know of clipping and noise, as transformations of optax.

Names are loaded when they are first used, so that `import bevel` does not load optax.
"""

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *MODULE_OF])

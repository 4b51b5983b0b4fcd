from bevel.optimizers.augmented import (
    AugmentedGradientTransformation as AugmentedGradientTransformation,
)
from bevel.optimizers.augmented import PreClippingTransform as PreClippingTransform
from bevel.optimizers.augmented import as_augmented_optimizer as as_augmented_optimizer
from bevel.optimizers.bias_corrected import dp_adam as dp_adam
from bevel.optimizers.bias_corrected import scale_by_dp_adam as scale_by_dp_adam
from bevel.optimizers.preconditioned import scale_then_privatize as scale_then_privatize

"""bevel: train JAX models with differential privacy, on any mesh, in mixed precision.

The public names, in the order in which data flows. They are imported on first use. A user of JAX
Privacy can write `import bevel as jax_privacy` and carry on.
"""

from typing import TYPE_CHECKING

from bevel.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bevel import accounting as accounting
    from bevel import batch_selection as batch_selection
    from bevel import clipping as clipping
    from bevel import errors as errors
    from bevel import execution_plan as execution_plan
    from bevel import experimental as experimental
    from bevel import inspection as inspection
    from bevel import matrix_factorization as matrix_factorization
    from bevel import noise_addition as noise_addition
    from bevel import optimizers as optimizers
    from bevel import precision as precision
    from bevel import processes as processes
    from bevel import report as report
    from bevel import sharding as sharding
    from bevel import training as training
    from bevel.clipping.bounded import AuxiliaryOutput as AuxiliaryOutput
    from bevel.clipping.bounded import BoundedSensitivityCallable as BoundedSensitivityCallable
    from bevel.clipping.clip_pytree import clip_and_round_to_grid as clip_and_round_to_grid
    from bevel.clipping.clip_pytree import clip_pytree as clip_pytree
    from bevel.clipping.clipped_grad import clipped_fun as clipped_fun
    from bevel.clipping.clipped_grad import clipped_grad as clipped_grad
    from bevel.clipping.explain import explain as explain
    from bevel.execution_plan import AdaptiveClipping as AdaptiveClipping
    from bevel.execution_plan import BandMFConfig as BandMFConfig
    from bevel.execution_plan import BLTConfig as BLTConfig
    from bevel.execution_plan import DPExecutionPlan as DPExecutionPlan
    from bevel.execution_plan import DPSGDConfig as DPSGDConfig
    from bevel.execution_plan import NonPrivateConfig as NonPrivateConfig
    from bevel.execution_plan import PerformanceFlags as PerformanceFlags
    from bevel.execution_plan import PlanSecrets as PlanSecrets
    from bevel.noise_addition import gaussian_privatizer as gaussian_privatizer
    from bevel.noise_addition import (
        matrix_factorization_privatizer as matrix_factorization_privatizer,
    )
    from bevel.training import Trainer as Trainer

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "bevel.clipping": [
            "clipped_grad",
            "clipped_fun",
            "clip_pytree",
            "clip_and_round_to_grid",
            "explain",
            "BoundedSensitivityCallable",
            "AuxiliaryOutput",
        ],
        "bevel.noise_addition": ["gaussian_privatizer", "matrix_factorization_privatizer"],
        "bevel.execution_plan": [
            "DPSGDConfig",
            "BandMFConfig",
            "BLTConfig",
            "NonPrivateConfig",
            "AdaptiveClipping",
            "DPExecutionPlan",
            "PerformanceFlags",
            "PlanSecrets",
        ],
        "bevel.training": ["Trainer"],
        # The rooms.
        ".": [
            "batch_selection",
            "clipping",
            "noise_addition",
            "matrix_factorization",
            "optimizers",
            "execution_plan",
            "accounting",
            "training",
            "report",
            "sharding",
            "inspection",
            "processes",
            "precision",
            "errors",
            "experimental",
        ],
    },
)

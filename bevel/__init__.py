"""bevel: train JAX models with differential privacy, on any mesh, in mixed precision.

The public names, in the order in which data flows. A user of JAX Privacy can write
`import bevel as jax_privacy` and carry on.
"""

from typing import TYPE_CHECKING, Any

from bevel import accounting as accounting
from bevel import batch_selection as batch_selection
from bevel import clipping as clipping
from bevel import errors as errors
from bevel import execution_plan as execution_plan
from bevel import matrix_factorization as matrix_factorization
from bevel import noise_addition as noise_addition
from bevel import optimizers as optimizers
from bevel import precision as precision
from bevel import report as report
from bevel import sharding as sharding
from bevel import training as training
from bevel.clipping import AuxiliaryOutput as AuxiliaryOutput
from bevel.clipping import BoundedSensitivityCallable as BoundedSensitivityCallable
from bevel.clipping import clip_and_round_to_grid as clip_and_round_to_grid
from bevel.clipping import clip_pytree as clip_pytree
from bevel.clipping import clipped_fun as clipped_fun
from bevel.clipping import clipped_grad as clipped_grad
from bevel.clipping import explain as explain

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bevel.execution_plan import AdaptiveClipping as AdaptiveClipping
    from bevel.execution_plan import BandMFConfig as BandMFConfig
    from bevel.execution_plan import BLTConfig as BLTConfig
    from bevel.execution_plan import DPExecutionPlan as DPExecutionPlan
    from bevel.execution_plan import DPSGDConfig as DPSGDConfig
    from bevel.execution_plan import NonPrivateConfig as NonPrivateConfig
    from bevel.execution_plan import PerformanceFlags as PerformanceFlags
    from bevel.execution_plan import PlanSecrets as PlanSecrets

PLANS = {
    "AdaptiveClipping",
    "BandMFConfig",
    "BLTConfig",
    "DPExecutionPlan",
    "DPSGDConfig",
    "NonPrivateConfig",
    "PerformanceFlags",
    "PlanSecrets",
}


def __getattr__(name: str) -> Any:
    # Plans load dp-accounting and optax, which take seconds: only when they are used.
    if name not in PLANS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(execution_plan, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PLANS])

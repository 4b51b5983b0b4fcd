"""One config, one plan: a sampler, clipping, noise and accounting that cannot disagree.

Names are loaded when they are first used, for dp-accounting and optax take seconds to import.
"""

from typing import TYPE_CHECKING

from bevel.lazy import lazy_exports

if TYPE_CHECKING:
    from bevel.execution_plan.adaptive_clipping import AdaptiveClipping as AdaptiveClipping
    from bevel.execution_plan.bandmf import BandMFConfig as BandMFConfig
    from bevel.execution_plan.blt import BLTConfig as BLTConfig
    from bevel.execution_plan.config import ExecutionPlanConfig as ExecutionPlanConfig
    from bevel.execution_plan.dpsgd import DPSGDConfig as DPSGDConfig
    from bevel.execution_plan.non_private import NonPrivateConfig as NonPrivateConfig
    from bevel.execution_plan.performance import PerformanceFlags as PerformanceFlags
    from bevel.execution_plan.plan import DPExecutionPlan as DPExecutionPlan
    from bevel.execution_plan.plan_secrets import PlanSecrets as PlanSecrets

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".adaptive_clipping": ["AdaptiveClipping"],
        ".bandmf": ["BandMFConfig"],
        ".blt": ["BLTConfig"],
        ".config": ["ExecutionPlanConfig"],
        ".dpsgd": ["DPSGDConfig"],
        ".non_private": ["NonPrivateConfig"],
        ".performance": ["PerformanceFlags"],
        ".plan": ["DPExecutionPlan"],
        ".plan_secrets": ["PlanSecrets"],
    },
)

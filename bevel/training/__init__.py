"""Training: the only room that joins the others.

Names are loaded when they are first used: optax, dp-accounting and Orbax take seconds to import.
"""

from typing import TYPE_CHECKING

from bevel.lazy import lazy_exports

if TYPE_CHECKING:
    from bevel.training.contribution import Augmentation as Augmentation
    from bevel.training.contribution import LossFn as LossFn
    from bevel.training.interrupts import RunInterrupted as RunInterrupted
    from bevel.training.run_options import RunOptions as RunOptions
    from bevel.training.state import ReleasedState as ReleasedState
    from bevel.training.state import TrainingState as TrainingState
    from bevel.training.trainer import DPTrainer as DPTrainer
    from bevel.training.trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".contribution": ["Augmentation", "LossFn"],
        ".interrupts": ["RunInterrupted"],
        ".run_options": ["RunOptions"],
        ".state": ["ReleasedState", "TrainingState"],
        ".trainer": ["DPTrainer", "Trainer"],
    },
)

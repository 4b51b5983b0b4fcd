"""Training: the only room that joins the others.

Names are loaded when they are first used: optax, dp-accounting and Orbax take seconds to import.
"""

from typing import TYPE_CHECKING

from bevel.lazy import loaded_when_used

if TYPE_CHECKING:
    from bevel.training.contribution import Augmentation as Augmentation
    from bevel.training.contribution import LossFn as LossFn
    from bevel.training.interrupts import RunInterrupted as RunInterrupted
    from bevel.training.run_options import RunOptions as RunOptions
    from bevel.training.state import ReleasedState as ReleasedState
    from bevel.training.state import TrainingState as TrainingState
    from bevel.training.trainer import DPTrainer as DPTrainer
    from bevel.training.trainer import Trainer as Trainer

PUBLIC = {
    "contribution": ["Augmentation", "LossFn"],
    "interrupts": ["RunInterrupted"],
    "run_options": ["RunOptions"],
    "state": ["ReleasedState", "TrainingState"],
    "trainer": ["DPTrainer", "Trainer"],
}
MODULE_OF = {name: module for module, names in PUBLIC.items() for name in names}

__getattr__, __dir__ = loaded_when_used(__name__, MODULE_OF)

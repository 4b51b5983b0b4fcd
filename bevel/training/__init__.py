"""Training: the only room that joins the others.

Names are loaded when they are first used: optax, dp-accounting and Orbax take seconds to import.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bevel.training.contribution import Augmentation as Augmentation
    from bevel.training.contribution import LossFn as LossFn
    from bevel.training.interrupts import RunInterrupted as RunInterrupted
    from bevel.training.run import RunOptions as RunOptions
    from bevel.training.state import TrainingState as TrainingState
    from bevel.training.trainer import DPTrainer as DPTrainer
    from bevel.training.trainer import Trainer as Trainer

PUBLIC = {
    "contribution": ["Augmentation", "LossFn"],
    "interrupts": ["RunInterrupted"],
    "run": ["RunOptions"],
    "state": ["TrainingState"],
    "trainer": ["DPTrainer", "Trainer"],
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

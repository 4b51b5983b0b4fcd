from bevel.training.contribution import Augmentation as Augmentation
from bevel.training.contribution import LossFn as LossFn
from bevel.training.interrupts import RunInterrupted as RunInterrupted
from bevel.training.run_options import RunOptions as RunOptions
from bevel.training.state import ReleasedState as ReleasedState
from bevel.training.state import TrainingState as TrainingState
from bevel.training.trainer import DPTrainer as DPTrainer
from bevel.training.trainer import Trainer as Trainer

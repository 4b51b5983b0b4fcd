"""The result of a search, read from the half of its folder that anyone may see."""

import dataclasses
from pathlib import Path
from typing import Any

from bevel.file_errors import explain_file_errors
from bevel.training.folder import RELEASED, RUN
from bevel.training.loading import LoadedRun, load
from bevel.training.run_json import damaged, read_record
from bevel.tuning.price import Price

PyTree = Any


@dataclasses.dataclass(frozen=True)
class TuningResult:
    """The best trial of a search. How many trials there were is secret, and not in here.

    Attributes:
      best: the model of the best trial, as `bevel.training.load` returns it; None if a Poisson
        number of trials was 0, which is a possible result.
      settings: the settings of the best trial; empty if there was none.
      score: its score.
      price: the epsilon of the search, and that of one trial.
      folder: the folder of the search. Its `released/` half may be shown.
    """

    best: LoadedRun | None
    settings: dict[str, Any]
    score: float | None
    price: Price
    folder: Path

    @property
    def params(self) -> PyTree:
        """The parameters of the best trial."""
        return None if self.best is None else self.best.params

    @property
    def epsilon(self) -> float:
        return self.price.epsilon

    @property
    def epsilon_of_one_trial(self) -> float:
        return self.price.epsilon_of_one_trial


def read_result(folder: Path, like: PyTree, price: Price) -> TuningResult:
    """The result of a complete search. `like` has the structure of the parameters."""
    path = folder / RELEASED / RUN
    with explain_file_errors(folder):
        record = read_record(path)
        found = record.get("selected", {})
        valid = isinstance(found, dict) and {"settings", "score"} <= found.keys()
        if not (valid or found is None):
            raise damaged(path)
        best = None if found is None else load(folder, like=like)
    settings, score = ({}, None) if found is None else (found["settings"], found["score"])
    return TuningResult(best, settings, score, price, folder)

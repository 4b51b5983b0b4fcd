"""The [data] table of a config: where the data is, and how to read it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DataTable:
    """The data to train on and to measure accuracy on."""

    source: str = "digits"
    """'digits' (from scikit-learn), or an .npz file with x_train, y_train, x_test and y_test."""
    tune: bool = False
    """Hold out the last fifth of the training set and measure accuracy on it, to tune options."""

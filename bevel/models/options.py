"""The [model] table of a config."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ModelTable:
    """The model. Its initial parameters are public, so their seed need not be secret."""

    kind: Literal["conv", "mlp", "linear"] = "conv"
    """A small convolutional network, a network of dense layers, or a linear model."""
    widths: tuple[int, ...] = (16, 32)
    """Channels of each convolution, or units of each hidden layer."""
    module: str | None = None
    """'file.py:function' for your own: function(data: DataSpec) -> bevel.models.Model."""
    init_seed: int = 0
    """Seed of the initial parameters."""

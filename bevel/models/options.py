"""The [model] table of a config."""

import dataclasses
from typing import Literal

from bevel.checks import instance, one_of, text, whole_number


@dataclasses.dataclass(frozen=True)
class ModelTable:
    """The model. Its initial parameters are public, so their seed need not be secret."""

    kind: Literal["auto", "linear", "mlp", "conv", "resnet", "text"] = "auto"
    """By default conv for images, mlp for tables and text for token sequences."""
    widths: tuple[int, ...] | None = None
    """mlp, conv: units or channels of each layer. By default they follow from the data."""
    width: int | None = None
    """resnet: how many times wider than 16 channels; text: numbers per token."""
    depth: int | None = None
    """resnet: number of layers (10, 16, 22, ...); text: number of transformer blocks."""
    module: str | None = None
    """Your own model: 'file.py:function' or 'package.module:function'. The file is run."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What built-in models compute in. Parameters, clipped sums and noise stay in float32."""
    init_seed: int = 0
    """Seed of the initial parameters."""

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("auto", "linear", "mlp", "conv", "resnet", "text"))
        one_of("dtype", self.dtype, ("float32", "bfloat16"))
        if self.module is not None:
            text("module", self.module)
        whole_number("init_seed", self.init_seed, 0, 2**32 - 1, "JAX keeps 32 bits of it.")
        why = "A larger layer does not fit into memory."
        if self.widths is not None:
            for width in instance("widths", self.widths, tuple, "a tuple of sizes"):
                whole_number("a size in widths", width, 1, 2**24, why)
        for name, least in [("width", 1), ("depth", 0)]:
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least, 2**24, why)

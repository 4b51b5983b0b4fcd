"""The options of a clipped function: `Clip` changes its privacy, `SpeedOptions` only its speed."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from bevel.checks import (
    LARGEST,
    flag,
    function,
    instance,
    is_real,
    scalar,
    shown,
    whole_number,
)
from bevel.errors import FixArgumentsError

PyTree = Any

# How norms may be computed: see `norms/costs.py`. 'form' and 'keep' materialise the gradients.
WAYS = ("outer", "gram", "product", "form", "keep")
# How memory may be bounded: see `memory.py`.
MEMORY_MODES = ("bookkeeping", "microbatches", "boundaries", "low")
HOLDING = MEMORY_MODES[:2]  # the modes that hold the values of taps inside a remat
# The limit for one contribution leaves room for 2**23 examples in int64.
LARGEST_ON_GRID = 2.0**40


@dataclasses.dataclass(frozen=True)
class Clip:
    """Options that bound one example's contribution. They change the privacy guarantee."""

    l2_clip_norm: PyTree
    rescale_to_unit_norm: bool = False
    automatic_gamma: float | None = None
    normalize_by: float = 1.0
    grid_scale: int | None = None
    nan_safe: bool = True

    @classmethod
    def checked(cls, l2_clip_norm: PyTree, **options: Any) -> "Clip":
        """Options as a user writes them, checked; concrete clip norms become Python floats."""
        if isinstance(l2_clip_norm, Iterator):
            raise FixArgumentsError(
                "l2_clip_norm is an iterator: pass a number, or a tree of them."
            )
        if not jax.tree.leaves(l2_clip_norm):
            raise FixArgumentsError(
                "l2_clip_norm is an empty tree: pass a number, or one per group."
            )
        clip = cls(jax.tree.map(_checked_norm, l2_clip_norm), **options)
        if clip.traced and not clip.rescale_to_unit_norm:
            raise FixArgumentsError(
                "l2_clip_norm is traced, so no fixed sensitivity can be stated. Pass "
                "rescale_to_unit_norm=True: the bound is then 1, whatever the norm."
            )
        for name in ("rescale_to_unit_norm", "nan_safe"):
            flag(name, getattr(clip, name))
        divisor = _concrete("normalize_by", clip.normalize_by)
        if not (math.isfinite(divisor) and divisor > 0):
            raise FixArgumentsError(
                f"normalize_by={shown(clip.normalize_by)}: pass a positive number, such as the "
                "batch size."
            )
        gamma = clip.automatic_gamma
        if gamma is not None:
            gamma = _concrete("automatic_gamma", gamma)
            if not 1e-30 <= gamma < math.inf:
                raise FixArgumentsError(
                    f"automatic_gamma={gamma}: contributions are scaled by clip_norm / (norm + "
                    "gamma), so pass a small positive number such as 0.01."
                )
        clip = dataclasses.replace(clip, normalize_by=divisor, automatic_gamma=gamma)
        if clip.grid_scale is not None:
            clip.check_grid()
        return clip

    def check_grid(self) -> None:
        """Raises if the integer grid cannot be used with the other options."""
        scale = self.grid_scale
        whole_number("grid_scale", scale)
        if (
            self.normalize_by != 1.0
            or self.rescale_to_unit_norm
            or self.automatic_gamma is not None
        ):
            raise FixArgumentsError(
                "grid_scale sums integers: use it without normalize_by, rescale_to_unit_norm "
                "and automatic_gamma, and divide after the noise."
            )
        if not jax.tree_util.treedef_is_leaf(jax.tree.structure(self.l2_clip_norm)):
            raise FixArgumentsError(
                "grid_scale takes one l2_clip_norm, not a tree of them: pass a number."
            )
        if self.traced or not 0 < self.norms[0] < math.inf:
            raise FixArgumentsError(
                f"l2_clip_norm={self.norms[0]}: a step of the grid is l2_clip_norm / grid_scale: "
                "pass a positive, finite number."
            )
        if not float(scale or 0) < LARGEST_ON_GRID:
            raise FixArgumentsError(
                f"grid_scale={scale} makes integers whose sum may not fit in int64: use a coarser "
                "grid."
            )
        if not jax.config.jax_enable_x64:
            raise FixArgumentsError(
                "grid_scale sums in int64, which JAX has only with "
                "jax.config.update('jax_enable_x64', True)."
            )

    @property
    def norms(self) -> list[Any]:
        """One clip norm per group."""
        return jax.tree.leaves(self.l2_clip_norm)

    @property
    def traced(self) -> bool:
        return any(isinstance(norm, jax.core.Tracer) for norm in self.norms)

    @property
    def l2_norm_bound(self) -> float:
        """The L2 norm that no example's contribution to the result exceeds."""
        if self.grid_scale is not None:
            return float(self.grid_scale)
        if self.rescale_to_unit_norm:
            bound = math.sqrt(len(self.norms))
        else:
            bound = math.hypot(*self.norms)
        return bound / self.normalize_by


def _concrete(name: str, value: Any) -> float:
    """A number of Python, NumPy or JAX as a float; NaN for anything else. It may be infinite."""
    if isinstance(value, jax.core.Tracer):
        raise FixArgumentsError(f"{name} is traced: pass a number that is known before the call.")
    return scalar(value)


def _checked_norm(norm: Any) -> Any:
    """One clip norm: a traced scalar as it is, anything else as a float that is not negative."""
    if isinstance(norm, jax.core.Tracer):
        return norm
    value = _concrete("l2_clip_norm", norm)
    if math.isnan(value) and not is_real(norm):
        raise FixArgumentsError(
            f"l2_clip_norm has the leaf {shown(norm)}: pass a number, or a tree of numbers that is "
            "a prefix of the parameters."
        )
    if not value >= 0:
        raise FixArgumentsError(
            f"l2_clip_norm={value}: the clip norm is a length, so pass a number >= 0."
        )
    return value


@dataclasses.dataclass(frozen=True)
class SpeedOptions:
    """Options of `clipped_grad` that change its speed and memory, and nothing that it returns.

    `bevel.clipped_grad` documents each of them.
    """

    microbatch_size: int | None = None
    engine: str = "auto"
    norms: str | Mapping[str, str] = "auto"
    memory: str | int | float = "auto"

    def __post_init__(self) -> None:
        if not (isinstance(self.engine, str) and self.engine in ("auto", "vmap")):
            raise FixArgumentsError(
                f"engine={shown(self.engine)}: write 'auto', or 'vmap' for the reference "
                "implementation."
            )
        if self.microbatch_size is not None:
            whole_number("microbatch_size", self.microbatch_size)
        self._check_memory()
        ways = self.norms.values() if isinstance(self.norms, Mapping) else [self.norms]
        for way in ways:
            if not (isinstance(way, str) and way in (*WAYS, "auto")):
                raise FixArgumentsError(
                    f"norms has {shown(way)}: write 'auto', or one of {', '.join(map(repr, WAYS))}."
                )
        if isinstance(self.norms, Mapping):
            for path in self.norms:
                instance("a path in norms", path, str, "a string")

    def _check_memory(self) -> None:
        memory = self.memory
        if isinstance(memory, str):
            valid = memory in ("auto", *MEMORY_MODES)
        else:
            # A float64 cannot count more bytes than this.
            is_number = isinstance(memory, int | float) and not isinstance(memory, bool)
            valid = is_number and 0 < memory <= LARGEST
        if not valid:
            raise FixArgumentsError(
                f"memory={shown(memory)}: write 'auto', one of "
                f"{', '.join(map(repr, MEMORY_MODES))}, an int (bytes of temporaries per device) "
                "or a float (times those of jax.grad)."
            )

    @classmethod
    def merged(cls, together: "SpeedOptions | None", single: "SpeedOptions") -> "SpeedOptions":
        """The options that were passed together, or one by one. Both at once are an error."""
        if together is None:
            return single
        instance("speed", together, cls, "SpeedOptions(...)")
        if single != cls():
            raise FixArgumentsError(
                "speed= was passed together with microbatch_size, engine, norms or memory: put "
                "all of them into SpeedOptions(...)."
            )
        return together


_MOST_ARGUMENTS = 255


def check_positions(name: str, argnums: Any) -> None:
    """Checks numbers of arguments. Negative ones count from the end; a call checks the range."""
    several = isinstance(argnums, Sequence) and not isinstance(argnums, str | bytes)
    for number in argnums if several else [argnums]:
        whole_number(name, number, -_MOST_ARGUMENTS, _MOST_ARGUMENTS)


@dataclasses.dataclass(frozen=True)
class Task:
    """All options of one clipped function."""

    fun: Callable[..., Any]
    clip: Clip
    argnums: int | Sequence[int] | None  # None: clip the output of fun, not its gradient
    batch_argnums: int | Sequence[int]
    has_aux: bool = False
    prng_argnum: int | None = None
    keep_batch_dim: bool = True
    transform: Callable[[PyTree], PyTree] | None = None
    dtype: Any = None
    speed: SpeedOptions = SpeedOptions()
    batch_axes: tuple[str, ...] | None = None
    reduce_axes: tuple[str, ...] = ()
    return_values: bool = False
    return_norms: bool = False

    def __post_init__(self) -> None:
        function("fun", self.fun, "pass the function to clip")
        flags = ("has_aux", "keep_batch_dim", "return_values", "return_norms")
        for name in flags:
            flag(name, getattr(self, name))
        check_positions("batch_argnums", self.batch_argnums)
        if self.prng_argnum is not None:
            whole_number("prng_argnum", self.prng_argnum, -_MOST_ARGUMENTS, _MOST_ARGUMENTS)

    @property
    def gradient(self) -> bool:
        return self.argnums is not None

    @property
    def needs_whole_gradients(self) -> str:
        """Which option needs every example's gradient as a whole, or an empty string."""
        if self.transform is not None:
            return "pre_clipping_transform needs it"
        if self.clip.grid_scale is not None:
            return "grid_scale needs it"
        return "engine='vmap'" if self.speed.engine == "vmap" else ""

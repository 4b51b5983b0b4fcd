"""`LoRA`: freeze the parameters of a model, and train low-rank factors of some of its matrices.

A matched matrix W becomes `W + alpha / rank * A B`, where only A and B are trained (Hu et al. 2021,
arXiv:2106.09685). The sum is formed once per step from parameters alone, and `clipped_grad` sees
through it: per example, nothing of the size of W is formed, and W has no gradient. The frozen base
may be sharded, and may be held in bfloat16 or int8.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from bevel.checks import one_of, positive_number, shown, whole_number
from bevel.errors import FixArgumentsError
from bevel.training.state import path_text

PyTree = Any
PathPatterns = str | Sequence[str] | Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class LoRA:
    """Which matrices get low-rank factors, and how the frozen base is held.

        factors, base = LoRA("*/attention/*/kernel", rank=8).split(params)

        def lora_loss(factors, base, data, prng):
            return loss_fn(base.merged(factors), data, prng)

        state = Trainer(loss_fn=lora_loss, ...).fit(data, factors, model_state=base)
        params = base.merged(state.params)

    The adapters in `bevel.frameworks` take it as `fit(..., lora=LoRA("*attention*/kernel"))`.

    Attributes:
      match: the matrices with factors: patterns of paths ("*/attention/*/kernel"), or a function of
        a path. Arrays with one dimension are left out. Do not match embedding tables, because a
        lookup in a merged table forms a gradient of the whole table for each example.
      rank: the inner dimension of the factors.
      alpha: the product of the factors is scaled by alpha / rank; by default by 1.
      full: parameters that are trained in full, such as a new output layer: "head/*".
      base: "as given", or the dtype in which frozen arrays with two or more dimensions are held.
        "int8" has one float32 scale per output channel. Such a base is rounded, and training sees
        the rounded one.
      stacked: how many leading dimensions of a matched array stack layers, as for a `scan`.
      seed: of the initial A. B begins at zero, so that training begins at the base.
    """

    match: PathPatterns
    rank: int = 8
    alpha: float | None = None
    full: PathPatterns = ()
    base: Literal["as given", "bfloat16", "int8"] = "as given"
    stacked: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number("rank", self.rank)
        whole_number("stacked", self.stacked, least=0)
        one_of("base", self.base, ("as given", "bfloat16", "int8"))
        for name in ("match", "full"):
            _check_patterns(name, getattr(self, name))
        if self.alpha is not None:
            positive_number("alpha", self.alpha, "or leave it out for alpha = rank")
        whole_number("seed", self.seed, 0, 2**32 - 1, "JAX keeps 32 bits of it.")

    def split(self, params: PyTree) -> tuple[dict[str, Any], "LoRABase"]:
        """The factors and fully trained arrays, by path, and everything else as the base."""
        leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
        key = jax.random.key(self.seed)
        trained, frozen, dtypes = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        for number, (path, x) in enumerate(leaves):
            # NNX has the array of a Variable at "value".
            name = path_text(path).removesuffix("/value")
            x = jnp.asarray(x)
            dtypes[name] = x.dtype
            is_float = jnp.issubdtype(x.dtype, jnp.floating)
            if is_float and _matches(self.full, name):
                trained[name] = x
                continue
            if is_float and x.ndim - self.stacked >= 2 and _matches(self.match, name):
                trained[name] = self._factors(jax.random.fold_in(key, number), x)
            frozen[name] = self._held(x) if is_float and x.ndim >= 2 else x
        if not any(isinstance(x, dict) for x in trained.values()):
            raise FixArgumentsError(
                f"match={shown(self.match)} matches no matrix of the parameters: "
                f"{', '.join(list(dtypes)[:12])}."
            )
        scale = 1.0 if self.alpha is None else self.alpha / self.rank
        return trained, LoRABase(frozen, treedef, tuple(dtypes.items()), scale, self.stacked)

    def _factors(self, key: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
        stack, shape = x.shape[: self.stacked], x.shape[self.stacked :]
        cut = _cut(shape)
        inputs, outputs = shape[:cut], shape[cut:]
        # In float32 whatever the base is, because updates may be smaller than bfloat16 resolves.
        a = jax.random.normal(key, (*stack, *inputs, self.rank), jnp.float32)
        b = jnp.zeros((*stack, self.rank, *outputs), jnp.float32)
        return {"a": a * math.prod(inputs) ** -0.5, "b": b}

    def _held(self, x: jax.Array) -> Any:
        if self.base == "as given":
            return x
        if self.base == "bfloat16":
            return x.astype(jnp.bfloat16)
        stack = min(self.stacked, x.ndim - 2)
        cut = stack + _cut(x.shape[stack:])
        x = x.astype(jnp.float32)
        largest = jnp.max(jnp.abs(x), axis=range(stack, cut), keepdims=True)
        scales = jnp.where(largest == 0, 1.0, largest) / 127
        return {"int8": jnp.round(x / scales).astype(jnp.int8), "scales": scales}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoRABase:
    """The frozen arrays of a model, by path: the `model_state` of a run."""

    arrays: Mapping[str, Any]
    treedef: Any = dataclasses.field(metadata={"static": True})
    dtypes: tuple[tuple[str, Any], ...] = dataclasses.field(metadata={"static": True})
    scale: float = dataclasses.field(metadata={"static": True})
    stacked: int = dataclasses.field(metadata={"static": True})

    def merged(self, trained: Mapping[str, Any]) -> PyTree:
        """The parameters of the model, in their dtypes: the base plus products of factors."""
        return jax.tree.unflatten(
            self.treedef, [self._leaf(name, dtype, trained) for name, dtype in self.dtypes]
        )

    def _leaf(self, name: str, dtype: Any, trained: Mapping[str, Any]) -> jax.Array:
        if name not in self.arrays:
            return trained[name]
        held = self.arrays[name]
        if isinstance(held, Mapping):
            held = held["int8"].astype(jnp.float32) * held["scales"]
        if name not in trained:
            return held.astype(dtype)
        pair = trained[name]
        product = _product(pair["a"], pair["b"], self.stacked)
        return (held.astype(product.dtype) + self.scale * product).astype(dtype)


def _product(a: jax.Array, b: jax.Array, stacked: int) -> jax.Array:
    # Not a reshape to matrices: `clipped_grad` follows a product, but not a reshape behind it.
    stack = tuple(range(stacked))
    return jax.lax.dot_general(a, b, (((a.ndim - 1,), (stacked,)), (stack, stack)))


def _cut(shape: Sequence[int]) -> int:
    """Where dimensions of inputs end and those of outputs begin: the cut with the least factors.

    A kernel of (width, heads, size) is cut after the first dimension, one of (heads, size, width)
    after the second.
    """
    cuts = range(1, len(shape))
    return min(cuts, key=lambda cut: math.prod(shape[:cut]) + math.prod(shape[cut:]))


def _check_patterns(name: str, patterns: Any) -> None:
    """Raises unless `patterns` are patterns of paths, or a function of a path."""
    several = isinstance(patterns, Sequence) and not isinstance(patterns, str | bytes)
    each = patterns if several else [patterns]
    if not callable(patterns) and not all(isinstance(pattern, str) and pattern for pattern in each):
        raise FixArgumentsError(
            f"{name}={shown(patterns)}: pass patterns of paths, such as '*/attention/*/kernel', or "
            "a function of a path."
        )


def _matches(patterns: PathPatterns, name: str) -> bool:
    if callable(patterns):
        return bool(patterns(name))
    each = (patterns,) if isinstance(patterns, str) else patterns
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in each)

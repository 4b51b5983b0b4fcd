"""Meshes, layouts and small matrices that the tests of noise share: a row joins all of them."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding.shard_generation import update_by_shard

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit

# Rows that fill blocks, rows that do not, one cut across them, a vector, a scalar.
SHAPES = {"w": (16, 64), "odd": (8, 12), "b": (24,), "s": ()}
GRADIENT = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}


@dataclass(frozen=True)
class Layout:
    """A mesh, what kind its axes are, and how each leaf is split. `manual`: within a shard_map."""

    name: str
    mesh_shape: tuple[int, ...]
    kinds: tuple[AxisType, ...]
    specs: Any
    manual: bool = False
    check_vma: bool = True

    @property
    def mesh(self):
        names = ("data", "model")[: len(self.mesh_shape)]
        return jax.make_mesh(self.mesh_shape, names, axis_types=self.kinds)

    def shardings(self):
        mesh = self.mesh
        return {name: NamedSharding(mesh, spec) for name, spec in self.specs.items()}

    def place(self, tree):
        shardings = self.shardings()
        return {name: jax.device_put(x, shardings[name]) for name, x in tree.items()}

    def compiled(self, fun, tree):
        """The program of `fun(tree)`, whose results are trees like it, on this layout."""
        if self.manual:
            specs = {name: self.specs[name] for name in tree}
            fun = jax.shard_map(
                fun,
                mesh=self.mesh,
                in_specs=(specs,),
                out_specs=specs,
                check_vma=self.check_vma,
            )
        return jax.jit(fun).lower(tree).compile()


SPLIT_8 = {"w": P("data"), "odd": P("data"), "b": P("data"), "s": P()}
SPLIT_42 = {"w": P("model", "data"), "odd": P(None, "data"), "b": P(("data", "model")), "s": P()}
WHOLE = {name: P() for name in SHAPES}

LAYOUTS = [
    Layout("auto-1", (1,), (AUTO,), SPLIT_8),
    Layout("auto-8", (8,), (AUTO,), SPLIT_8),
    Layout("auto-42", (4, 2), (AUTO,) * 2, SPLIT_42),
    Layout("auto-42-whole", (4, 2), (AUTO,) * 2, WHOLE),
    Layout("explicit-8", (8,), (EXPLICIT,), SPLIT_8),
    Layout("explicit-42", (4, 2), (EXPLICIT,) * 2, SPLIT_42),
    Layout("mixed-42", (4, 2), (EXPLICIT, AUTO), {**SPLIT_42, "b": P("data")}),
    Layout("manual-8", (8,), (AUTO,), SPLIT_8, manual=True),
    Layout("manual-42", (4, 2), (AUTO,) * 2, SPLIT_42, manual=True),
    Layout("manual-42-unchecked", (4, 2), (AUTO,) * 2, SPLIT_42, manual=True, check_vma=False),
]
# On mixed meshes the compiler cuts the Auto axes by its own rules.
WITHOUT_COMMUNICATION = [layout for layout in LAYOUTS if layout.name != "mixed-42"]


def threefry_key(seed):
    """A typed key that tests may give to one privatizer after another."""
    return jax.random.key(seed)


@dataclass(frozen=True)
class _Generate:
    make: Any

    def __call__(self, words, shards, arrays):
        return self.make(words, shards[0])


def generate_by_shard(make, words, like, spec=None, results=1):
    """The results of `make(words, shard)` for every shard of `like`."""
    return update_by_shard(_Generate(make), words, (like,) * results, (spec,) * results)


# In tests whose noise shows its bits, so that they share no program with those of real noise.
STDDEV_OF_BITS = 0.5


def bits_as_noise(bits, dtype):
    """Exact numbers in place of normals: nothing hides behind a tolerance, and compiles faster.

    For `monkeypatch.setattr(addition, "normal_from_bits", bits_as_noise)`.
    """
    high, low = bits
    return ((high ^ low) >> np.uint32(8)).astype(dtype)


class Decaying:
    """y[t] = x[t] - y[t-1] / 2, as a streaming matrix: the one buffer is the last result."""

    @staticmethod
    def init_multiply(x):
        return {"last": jnp.zeros((1, *x.shape), x.dtype), "steps": jnp.zeros((), np.int32)}

    @staticmethod
    def multiply_next(x, state):
        y = x - state["last"][0] / 2
        return y, {"last": y[None], "steps": state["steps"] + 1}


def decaying(n):
    """The dense matrix of `Decaying`."""
    i, j = np.indices((n, n))
    return np.where(i >= j, (-0.5) ** np.maximum(i - j, 0), 0.0)

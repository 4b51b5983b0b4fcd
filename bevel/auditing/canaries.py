"""Canaries: units of the data set whose membership a fair coin decides.

An audit trains with the canaries that are held in, and tries to tell which ones these were. The
sampler, the clipping, the accounting and the ledger treat a canary as any other example or user.

A canary takes the place of a unit of the data set, so that the number of units, and with it the
plan, stays the same. What a canary that is held out does follows from the neighbouring relation:

- add-or-remove-one and replace-special: it is absent. It can still be drawn for a batch, but its
  row is then treated as padding. This is the same as not being in the data, because all samplers
  that are proven under these relations draw the other units without regard to it, and because sums
  are divided by a constant.
- replace-one: a gradient canary has the opposite gradient instead. Neighbours under this relation
  differ by up to twice the clip norm, and an audit that used less would be weaker than the
  guarantee. A record canary is absent: this is a record whose gradient is zero.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.auditing.arguments import Ints
from bevel.checks import in_one_line, instance, integers, shown, text, whole_number, without_mask
from bevel.errors import FixArgumentsError
from bevel.training.state import path_text

PyTree = Any
# Parts of a seed: each is a stream of its own.
_MOST, _WHY = 2**27, "Each of them is held in memory."
_PLACES, _COINS, _COORDINATES, _RECORDS = range(4)


@dataclasses.dataclass(frozen=True, eq=False)
class Canaries:
    """Canaries and their coins, the same for the same seed.

    Attributes:
      units: the unit of the data set whose place each canary takes, an index.
      held_in: the coins: whether each canary is in the data.
    """

    units: Ints
    held_in: np.ndarray

    def __post_init__(self) -> None:
        units, coins = integers("units", self.units), without_mask("held_in", self.held_in)
        if not isinstance(coins, np.ndarray) or coins.dtype != bool or coins.shape != units.shape:
            raise FixArgumentsError(
                f"held_in={shown(coins)}: pass an array with True or False for each of the "
                f"{len(units)} units."
            )
        if units.size and units.min() < 0:
            raise FixArgumentsError(f"units has {units.min()}: pass positions in the data.")
        object.__setattr__(self, "units", units)

    def __len__(self) -> int:
        return len(self.units)


@dataclasses.dataclass(frozen=True, eq=False)
class GradientCanaries(Canaries):
    """Canaries whose gradient is along one coordinate of the parameters: Dirac canaries.

    No two have the same coordinate, so they are orthogonal and do not disturb each other. They need
    no data and work with every loss. Clipping shortens their gradient to the clip norm, the most
    that one example may contribute.

    Attributes:
      leaf: the leaf of each canary, as an index into the leaves of the trained parameters.
      index: the position in that leaf, of shape (canaries, most dimensions). Unused entries are 0.
      paths: the paths of all leaves.
    """

    leaf: Ints
    index: Ints
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        instance("paths", self.paths, tuple, "a tuple of paths")
        for path in self.paths:
            instance("a path", path, str, "a string")
        leaf, index = integers("leaf", self.leaf), integers("index", self.index, 2)
        if len(leaf) != len(self) or len(index) != len(self):
            raise FixArgumentsError(
                f"leaf has shape {leaf.shape} and index {index.shape}: pass a row for each of the "
                f"{len(self)} canaries."
            )
        if leaf.size and not 0 <= leaf.min() <= leaf.max() < len(self.paths):
            raise FixArgumentsError(
                f"leaf has {leaf.max()}, but there are {len(self.paths)} paths."
            )
        object.__setattr__(self, "leaf", leaf)
        object.__setattr__(self, "index", index)

    def by_leaf(self) -> dict[int, np.ndarray]:
        """The numbers of the canaries of each leaf that has any."""
        return {int(k): np.flatnonzero(self.leaf == k) for k in np.unique(self.leaf)}

    def values(self, tree: PyTree) -> jax.Array:
        """The entries of a tree like the trained parameters at the coordinates, in float32.

        Only these entries leave the shards of the tree: one number for each canary.
        """
        leaves, order, found = jax.tree.leaves(tree), [], []
        for k, numbers in self.by_leaf().items():
            places = tuple(jnp.asarray(self.index[numbers, i]) for i in range(leaves[k].ndim))
            entries = leaves[k][places] if places else leaves[k][None]
            found.append(entries.astype(jnp.float32))
            order.append(numbers)
        return jnp.concatenate(found)[np.argsort(np.concatenate(order))]


@dataclasses.dataclass(frozen=True, eq=False)
class RecordCanaries(Canaries):
    """Canaries that are records: each is trained on like any other example if it is held in.

    Attributes:
      records: a tree of arrays like the data, with one row for each canary.
    """

    records: PyTree

    def __post_init__(self) -> None:
        super().__post_init__()
        _checked_records("records", self.records, len(self))


def gradient_canaries(
    params: PyTree, count: int, num_units: int, seed: int | None = None
) -> GradientCanaries:
    """Draws coordinates of the parameters, places in the data, and coins.

    Args:
      params: the trained parameters, or their shapes.
      count: the number of canaries. Coordinates are drawn from all leaves without repetition, so
        that a leaf has canaries in proportion to its size.
      num_units: the number of examples (or users) in the data.
      seed: None draws from the entropy of the operating system.
    """
    drawn = _coins(count, num_units, seed)
    leaves = [] if isinstance(params, Iterator) else jax.tree_util.tree_leaves_with_path(params)
    if isinstance(params, Iterator) or not all(hasattr(leaf, "dtype") for _, leaf in leaves):
        raise FixArgumentsError("params has leaves that are not arrays: pass the parameters.")
    sizes = [leaf.size if jnp.issubdtype(leaf.dtype, jnp.floating) else 0 for _, leaf in leaves]
    if count > sum(sizes):
        raise FixArgumentsError(
            f"canaries={count}, but there are only {sum(sizes)} parameters, and no two canaries "
            "may have the same coordinate: use fewer canaries and more runs."
        )
    flat = _stream(seed, _COORDINATES).choice(sum(sizes), count, replace=False)
    ends = np.cumsum(sizes)
    leaf = np.searchsorted(ends, flat, side="right")
    index = np.zeros((count, max(1, *(x.ndim for _, x in leaves))), np.int64)
    for k, (_, x) in enumerate(leaves):
        own = leaf == k
        if x.ndim:
            places = np.unravel_index(flat[own] - (ends[k] - sizes[k]), x.shape)
            index[own, : x.ndim] = np.stack(places, axis=1)
    paths = tuple(path_text(path) for path, _ in leaves)
    return GradientCanaries(drawn.units, drawn.held_in, leaf, index, paths)


def record_canaries(records: PyTree, num_units: int, seed: int | None = None) -> RecordCanaries:
    """Draws places in the data and coins for your own records, one row of each array a canary."""
    records = _checked_records("records", records)
    drawn = _coins(len(jax.tree.leaves(records)[0]), num_units, seed)
    return RecordCanaries(drawn.units, drawn.held_in, records)


def random_records(data: PyTree, count: int, seed: int | None = None) -> PyTree:
    """Makes records that look like none of the data: every entry comes from a random record.

    Each column is shuffled by itself, so that values stay in their range and classes are valid.
    """
    rng = _stream(seed, _RECORDS)
    data = _checked_records("data", data)
    whole_number("count", count, 1, _MOST, _WHY)

    def mixed(column: np.ndarray) -> np.ndarray:
        if not column.size:
            raise FixArgumentsError("data has no records: pass at least one.")
        rows = rng.integers(0, len(column), (count, *column.shape[1:]))
        return np.take_along_axis(np.asarray(column), rows, axis=0)

    return jax.tree.map(mixed, data)


def mislabelled_records(data: PyTree, label: str, count: int, seed: int | None = None) -> PyTree:
    """Makes copies of random records with a wrong label, which only memorisation can fit.

    Args:
      data: a dict of arrays with one row per record.
      label: the name of the column of labels, integers with at least two values.
    """
    text("label", label)
    whole_number("count", count, 1, _MOST, _WHY)
    if not isinstance(data, Mapping) or label not in data:
        raise FixArgumentsError(f"data has no {shown(label)}: pass a dict of arrays that has it.")
    data = _checked_records("data", data)
    labels = data[label]
    classes = np.unique(labels)
    if len(classes) < 2 or not np.issubdtype(labels.dtype, np.integer):
        raise FixArgumentsError(
            f"data[{label!r}] has {len(classes)} values of dtype {labels.dtype}: mislabelled "
            "records need integer labels of at least two classes. Use random_records instead."
        )
    rng = _stream(seed, _RECORDS)
    rows = rng.integers(0, len(labels), count)
    records = jax.tree.map(lambda column: np.asarray(column)[rows], data)
    # A shift by 1 to classes - 1 gives each wrong class the same probability.
    shift = rng.integers(1, len(classes), count)
    wrong = (np.searchsorted(classes, labels[rows]) + shift) % len(classes)
    return {**records, label: classes[wrong]}


def _checked_records(name: str, records: PyTree, count: int | None = None) -> PyTree:
    """Returns a tree of arrays with one row per record; raises if their lengths differ."""
    if isinstance(records, Iterator):
        raise FixArgumentsError(f"{name} is an iterator: pass a dict of arrays.")

    def array(leaf: Any) -> np.ndarray:
        try:
            return np.asarray(without_mask(name, leaf))
        except FixArgumentsError:
            raise
        except Exception as error:  # what a leaf raises when it is read
            raise FixArgumentsError(f"{name} has {shown(leaf)}: pass arrays.") from error

    arrays = jax.tree.map(array, records)
    leaves = jax.tree.leaves(arrays)
    counts = {x.shape[:1] for x in leaves}
    strange = any(x.dtype.kind == "O" for x in leaves)
    if len(counts) != 1 or () in counts or strange or count not in (None, len(leaves[0])):
        shapes = in_one_line(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", arrays))
        raise FixArgumentsError(
            f"{name} has shapes {shapes}: pass arrays like those of the data, with one row for "
            "each record."
        )
    return arrays


def _coins(count: int, num_units: int, seed: int | None) -> Canaries:
    whole_number("canaries", count, 2, _MOST, _WHY)
    if count > whole_number("num_units", num_units):
        raise FixArgumentsError(
            f"canaries={count}, but the data has only {num_units} units, whose places they take: "
            "use fewer canaries (on the command line: --canaries), and more runs."
        )
    units = _stream(seed, _PLACES).choice(num_units, count, replace=False)
    coins = _stream(seed, _COINS).random(count) < 0.5
    return Canaries(units, coins)


def _stream(seed: int | None, part: int) -> np.random.Generator:
    if seed is not None:
        whole_number("seed", seed, 0, 2**128)
    return np.random.default_rng(None if seed is None else [seed, part])

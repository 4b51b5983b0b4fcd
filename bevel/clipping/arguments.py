"""Splits the arguments of a call by role: differentiated, batched, random, or constant."""

import dataclasses
import enum
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import without_mask
from bevel.clipping.options import Task
from bevel.errors import FixArgumentsError
from bevel.precision import overflowing


class Role(enum.Enum):
    PARAM = "differentiated"
    BATCH = "one slice per example"
    KEY = "one key per example"
    CONSTANT = "the same array for every example"
    STATIC = "a Python value"


class Leaves(NamedTuple):
    """The arrays of a call, by role."""

    params: list[Any]
    batch: list[Any]
    keys: list[Any]
    constants: list[Any]

    def flat(self) -> list[Any]:
        """In the order of a traced program's inputs."""
        return [*self.params, *self.batch, *self.keys, *self.constants]


@dataclasses.dataclass(frozen=True)
class ByIdentity:
    """Makes a value that has no hash usable in a cache key."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclasses.dataclass(frozen=True)
class Call:
    """The structure of a call: everything but its arrays. Hashable."""

    treedef: Any
    roles: tuple[Role, ...]
    statics: tuple[Any, ...]
    param_paths: tuple[str, ...]
    result: Any  # treedef of the gradient
    param_order: tuple[int, ...]  # index in `Leaves.params`, in the order of the call

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.treedef, self.roles, self.statics, self.param_paths, self.result))

    @functools.cached_property
    def _positions(self) -> dict[Role, list[int]]:
        """Where the leaves of each role are in the flat arguments, in the order of `Leaves`."""
        found = {
            role: [i for i, own in enumerate(self.roles) if own is role] for role in set(self.roles)
        }
        if Role.PARAM in found:
            placed = dict(zip(self.param_order, found[Role.PARAM], strict=True))
            found[Role.PARAM] = [placed[i] for i in range(len(placed))]
        return found

    def leaves(self, flat: Sequence[Any]) -> Leaves:
        """The arrays of another call with this structure."""
        roles = Role.PARAM, Role.BATCH, Role.KEY, Role.CONSTANT
        return Leaves(*([flat[i] for i in self._positions.get(role, ())] for role in roles))

    def arguments(self, leaves: Leaves) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Puts arrays back into the structure of the call: `(args, kwargs)`."""
        by_role = {
            Role.PARAM: (leaves.params[i] for i in self.param_order),
            Role.BATCH: iter(leaves.batch),
            Role.KEY: iter(leaves.keys),
            Role.CONSTANT: iter(leaves.constants),
            Role.STATIC: (s.value if isinstance(s, ByIdentity) else s for s in self.statics),
        }
        return jax.tree.unflatten(self.treedef, [next(by_role[role]) for role in self.roles])


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is traced. Bools, strings and other objects stay Python values."""
    if isinstance(leaf, bool):
        return False
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex)


def _positions(argnums: int | Sequence[int], name: str, count: int) -> tuple[int, ...]:
    """Argument numbers as a tuple of non-negative ints, checked against the call."""
    numbers = (argnums,) if isinstance(argnums, int | np.integer) else tuple(argnums)
    for number in numbers:
        if not -count <= number < count:
            raise FixArgumentsError(
                f"{name}={argnums} names argument {number}, but the call has {count} positional "
                "arguments. Pass that argument by position, or correct the number."
            )
    return tuple(int(number) % count for number in numbers)


def split_call(task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Leaves]:
    """Checks a call and splits it by role."""
    argnums, batch_argnums, prng_argnum = task.argnums, task.batch_argnums, task.prng_argnum
    diff = _positions(argnums, "argnums", len(args)) if argnums is not None else ()
    batch = _positions(batch_argnums, "batch_argnums", len(args))
    prng = _positions(prng_argnum, "prng_argnum", len(args)) if prng_argnum is not None else ()
    if len(set(diff)) < len(diff):
        raise FixArgumentsError(f"argnums={argnums} names an argument twice: name each once.")
    _check_disjoint(argnums=diff, batch_argnums=batch, prng_argnum=prng)
    role_of = dict.fromkeys(diff, Role.PARAM) | dict.fromkeys(batch, Role.BATCH)
    role_of |= dict.fromkeys(prng, Role.KEY)

    paths, treedef = jax.tree_util.tree_flatten_with_path((args, kwargs))
    roles, statics = [], []
    leaves = Leaves([], [], [], [])
    found: list[tuple[int, Any, str]] = []
    for path, leaf in paths:
        positional = path[0].idx == 0
        role = role_of.get(path[1].idx, Role.CONSTANT) if positional else Role.CONSTANT
        where = f"argument {path[1].idx}{jax.tree_util.keystr(path[2:])}" if positional else ""
        if role is Role.CONSTANT and not _is_array(leaf):
            role = Role.STATIC
        roles.append(role)
        if role is Role.PARAM:
            _check_param(leaf, where)
            found.append((diff.index(path[1].idx), leaf, where))
        elif role is Role.BATCH:
            _check_batch_leaf(leaf, where)
            leaves.batch.append(leaf)
        elif role is Role.KEY:
            _check_key(leaf, where)
            leaves.keys.append(leaf)
        elif role is Role.CONSTANT:
            leaves.constants.append(leaf)
        else:
            statics.append(leaf if _hashable(leaf) else ByIdentity(leaf))

    order = sorted(range(len(found)), key=lambda i: found[i][0])  # stable: keeps argnums' order
    leaves.params.extend(found[i][1] for i in order)
    param_paths = [found[i][2] for i in order]
    differentiated = tuple(args[i] for i in diff)
    result = differentiated[0] if isinstance(argnums, int | np.integer) else differentiated
    call = Call(
        treedef,
        tuple(roles),
        tuple(statics),
        tuple(param_paths),
        jax.tree.structure(result),
        tuple(order.index(i) for i in range(len(order))),
    )
    return call, leaves


class CallSplitter:
    """Splits calls like `split_call`, and does not check again what it has seen.

    An eager call with many parameters would spend most of its time on checks.
    """

    def __init__(self, task: Task):
        self.task = task
        self.known = dict[Any, Call]()

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Leaves]:
        flat, treedef = jax.tree.flatten((args, kwargs))
        types = [(type(x), getattr(x, "shape", None), getattr(x, "dtype", None)) for x in flat]
        key = treedef, tuple(types)
        if key in self.known:
            call = self.known[key]
            return call, call.leaves(flat)
        call, leaves = split_call(self.task, args, kwargs)
        if Role.STATIC not in call.roles:  # the values of others are part of the structure
            self.known[key] = call
        return call, leaves


def _check_disjoint(**groups: tuple[int, ...]) -> None:
    """Raises if two groups of argument numbers overlap."""
    for (name, one), (other, two) in itertools.combinations(groups.items(), 2):
        shared = sorted(set(one) & set(two))
        if shared:
            raise FixArgumentsError(
                f"{name} and {other} both name argument {shared[0]}: an argument is "
                "differentiated, or split into examples, or a random key. Give each its own number."
            )


def _check_param(leaf: Any, where: str) -> None:
    """Raises unless a differentiated leaf is a real float array."""
    without_mask(where, leaf)
    if not _is_array(leaf):
        raise FixArgumentsError(
            f"{where} is a {type(leaf).__name__}, which has no gradient. Split the model and pass "
            "what is not trained as an argument outside argnums."
        )
    dtype = jax.typeof(leaf).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise FixArgumentsError(
            f"{where} has dtype {dtype}, which has no real gradient. Cast it to a float dtype, or "
            "pass it as an argument outside argnums."
        )


def _first_key(key: Any) -> jax.Array:
    return jax.random.fold_in(key, 0)


def example_key_type(key: Any) -> jax.ShapeDtypeStruct:
    """The type of the key that one example gets."""
    return jax.eval_shape(_first_key, key)


def _check_key(leaf: Any, where: str) -> None:
    """Raises unless a leaf is one random key."""
    try:
        example_key_type(leaf)
    except (TypeError, ValueError) as error:
        raise FixArgumentsError(
            f"{where} is named by prng_argnum, but is not a random key: pass jax.random.key(seed)."
        ) from error


def _check_batch_leaf(leaf: Any, where: str) -> None:
    """Raises unless a batch leaf has a leading axis."""
    if not _is_array(leaf) or np.ndim(leaf) == 0:
        raise FixArgumentsError(
            f"{where} is split into examples, but {leaf!r:.60} has no leading axis. Pass an array "
            "with one row per example, or take this argument out of batch_argnums."
        )
    if isinstance(leaf, np.ndarray):
        without_mask(where, leaf)
        # Objects, text, times and structured records.
        if leaf.dtype.kind in "OSUMm" or leaf.dtype.names:
            raise FixArgumentsError(
                f"{where} has dtype {leaf.dtype}, but JAX computes with numbers. Encode it, as in "
                "np.unique(labels, return_inverse=True)[1]."
            )
        changed = overflowing(leaf)
        if changed is not None:
            raise FixArgumentsError(
                f"{where} has the value {changed}, which does not fit into 32 bits: JAX would "
                "silently change it. Encode it, as in np.unique(labels, return_inverse=True)[1], "
                "or call jax.config.update('jax_enable_x64', True)."
            )


def batch_size(batch: Sequence[Any], mask: Any) -> int:
    """The common leading size of the batch, checked against the padding mask."""
    if not batch:
        raise FixArgumentsError(
            "the arguments in batch_argnums hold no arrays, so there are no examples to clip. "
            "Point batch_argnums at the data."
        )
    sizes = sorted({int(leaf.shape[0]) for leaf in batch})
    if len(sizes) > 1:
        raise FixArgumentsError(
            f"batch arrays have different leading sizes {sizes}: give every array one row per "
            "example, or pass arrays that are not per example outside batch_argnums."
        )
    if mask is not None and (np.shape(mask) != (sizes[0],) or jnp.result_type(mask) != np.bool_):
        raise FixArgumentsError(
            f"is_padding_example has shape {np.shape(mask)} and dtype {jnp.result_type(mask)}; "
            f"pass a bool array of shape ({sizes[0]},), True where a row is padding."
        )
    return sizes[0]


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True

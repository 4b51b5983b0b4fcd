"""`simulate_shard_map`: the programs of `jax.shard_map` on one device."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.inspection.simulate.derivatives import simulated
from bevel.inspection.simulate.padding import Padding
from bevel.inspection.simulate.shards import check_specs
from bevel.sharding import types

UNCHECKED = object()


def simulate_shard_map(
    f: Callable[..., Any],
    /,
    *,
    mesh: Mesh | AbstractMesh | Mapping[str, int] | None = None,
    in_specs: Any,
    out_specs: Any = UNCHECKED,
    axis_names: Set[str] = frozenset(),
    check_vma: bool = True,
    pad: bool = False,
    per_device: bool = False,
) -> Callable[..., Any]:
    """`jax.shard_map(f, ...)`, run on one device: the same results and the same errors.

    The real `shard_map` is traced over an abstract mesh, which needs no devices, and its body's
    program is run by nested `vmap`s, one for each mesh axis. So JAX itself checks specs and types,
    and adds the sums that gradients need. Differentiation, `jit` and `vmap` work on the result as
    on the real one.

    Args:
      f: as for `jax.shard_map`. It may use every collective of `jax.lax`, loops and branches,
        callbacks, inner `grad`s and inner `shard_map`s.
      mesh: a mesh, real or abstract, or the sizes of its axes, as in `{"data": 4, "model": 2}`;
        None takes the one of `jax.set_mesh`. Its devices are not used. Explicit axes are taken as
        Auto axes where `f` is manual: the arguments lie on one device and have no sharding to
        compare `in_specs` with.
      in_specs, out_specs, axis_names, check_vma: as for `jax.shard_map`. Mesh axes that are not in
        `axis_names` are the compiler's business: constraints over them change no value.
      pad: dimensions that the mesh does not divide are filled up with zeros, and cut back in the
        outputs. `f` sees the filled rows: give it a vector of ones beside the batch to tell them
        by its zeros. False raises, as `jax.shard_map` does.
      per_device: return what every device holds: each output gets dimensions in front, one for
        each manual axis in the order of the mesh. `out_specs` may then be left out, to look at
        outputs that no spec fits.

    Cost: the memory of all devices together, on one. Eager calls run one operation at a time, so
    wrap the result in `jax.jit`. Both branches of a `cond` run where devices disagree.

    What hangs on real devices raises here, if `check_vma=True`: a collective that some devices
    skip, because they take another branch or leave a loop earlier.
    """
    if out_specs is UNCHECKED and not per_device:
        raise FixArgumentsError("out_specs is missing: only per_device=True goes without it.")
    check_specs(jax.tree.leaves((in_specs, out_specs)))

    @functools.wraps(f)
    def call(*args: Any) -> Any:
        place = _Place.of(mesh, axis_names)
        padding = Padding(in_specs, place.sizes) if pad else None
        whole = padding.fill(args) if padding else args
        options = {"in_specs": in_specs, "axis_names": axis_names, "check_vma": check_vma}
        if out_specs is not UNCHECKED:
            real = jax.shard_map(f, mesh=place.mesh, out_specs=out_specs, **options)
            if not per_device:
                outputs = _run_traced(real, whole, in_specs, place)
                return padding.cut(outputs, out_specs) if padding else outputs
            _trace(real, whole, in_specs, place)  # for its errors
        view = jax.shard_map(
            functools.wraps(f)(lambda *a: jax.tree.map(lambda x: _expanded(x), f(*a))),
            mesh=place.mesh,
            out_specs=PartitionSpec(tuple(place.sizes)),
            **options,
        )
        stacked = _run_traced(view, whole, in_specs, place)
        return jax.tree.map(lambda x: x.reshape(*place.sizes.values(), *x.shape[1:]), stacked)

    return call


def _expanded(x: Any) -> jax.Array:
    return jnp.expand_dims(jnp.asarray(x), 0)


class _Place:
    """The mesh to trace on, and the sizes of its manual axes in order."""

    def __init__(self, mesh: AbstractMesh, sizes: dict[str, int], context: Any) -> None:
        self.mesh = mesh
        self.sizes = sizes
        self.context = context

    @classmethod
    def of(cls, given: Any, axis_names: Set[str]) -> "_Place":
        around = jax.sharding.get_abstract_mesh()
        if isinstance(given, Mapping):
            kinds = (AxisType.Auto,) * len(given)
            given = AbstractMesh(tuple(given.values()), tuple(given), axis_types=kinds)
        mesh = around if given is None else getattr(given, "abstract_mesh", given)
        if not isinstance(mesh, AbstractMesh) or mesh.empty or mesh.manual_axes:
            if isinstance(mesh, AbstractMesh) and mesh.manual_axes:
                raise FixArgumentsError(
                    f"the mesh is manual over {mesh.manual_axes} already: simulate the outermost "
                    "shard_map, and use jax.shard_map within it."
                )
            return cls(mesh, {}, contextlib.nullcontext)  # JAX raises
        manual = [a for a in mesh.axis_names if not axis_names or a in axis_names]
        kinds = tuple(
            AxisType.Auto if name in manual else kind
            for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        )
        auto = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
        sizes = {name: mesh.shape[name] for name in manual}
        if around.empty or around == mesh:
            return cls(auto, sizes, functools.partial(jax.sharding.use_abstract_mesh, auto))
        return cls(mesh, sizes, contextlib.nullcontext)  # two meshes: JAX raises


def _run_traced(real: Callable[..., Any], args: Any, in_specs: Any, place: _Place) -> Any:
    program, values, tree = _trace(real, args, in_specs, place)
    outside = AbstractMesh((), (), axis_types=())
    with jax.sharding.use_abstract_mesh(outside):
        outputs = simulated(program)(*program.consts, *values)
    return jax.tree.unflatten(tree, outputs)


def _trace(real: Callable[..., Any], args: Any, in_specs: Any, place: _Place) -> Any:
    """The program of the real shard_map, its arguments, and the tree of its results."""
    leaves, tree = jax.tree.flatten(args)
    static = _static_leaves(in_specs, args)
    values = [x for x, fixed in zip(leaves, static, strict=True) if not fixed]
    for x in values:
        if types.explicit_sharding(x) is not None:
            raise FixArgumentsError(
                f"an argument is sharded by its type ({jax.typeof(x)}): simulation runs on one "
                "device. Pass jax.device_put(x, jax.devices()[0])."
            )

    def call(*values: Any) -> Any:
        rest = iter(values)
        filled = [x if fixed else next(rest) for x, fixed in zip(leaves, static, strict=True)]
        return real(*jax.tree.unflatten(tree, filled))

    with place.context():
        program, shape = jax.make_jaxpr(call, return_shape=True)(*values)
    return program, values, jax.tree.structure(shape)


def _static_leaves(in_specs: Any, args: tuple[Any, ...]) -> list[bool]:
    """Which leaves of the arguments have None for a spec: `f` gets them as they are."""

    def is_none(x: Any) -> bool:
        return x is None

    try:
        specs = jax.tree.broadcast(in_specs, args, is_leaf=is_none)
    except ValueError:
        return [False for _ in jax.tree.leaves(args)]  # JAX raises
    return [spec is None for spec in jax.tree.leaves(specs, is_leaf=is_none)]

"""Run the programs of `jax.shard_map` on one device."""

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
    """`jax.shard_map(f, ...)` on one device, with the same results and errors.

    The real `shard_map` is traced over an abstract mesh, which needs no devices, and the program of
    its body runs under nested `vmap`s, one for each mesh axis. So JAX itself checks specs and
    types, and adds the sums that gradients need. You can differentiate, `jit` and `vmap` the result
    like that of `jax.shard_map`.

    Args:
      f: as for `jax.shard_map`. It may use all collectives of `jax.lax`, loops and branches,
        callbacks, inner `grad`s and inner `shard_map`s.
      mesh: a real or abstract mesh, or the sizes of its axes such as `{"data": 4, "model": 2}`. By
        default the mesh of `jax.set_mesh`. Its devices are not used. Explicit axes over which `f`
        is manual are treated as Auto, because the arguments are on one device and have no sharding
        to compare with `in_specs`.
      in_specs, out_specs, axis_names, check_vma: as for `jax.shard_map`. Sharding constraints over
        mesh axes that are not in `axis_names` have no effect on values, and are dropped.
      pad: whether to pad dimensions that the mesh does not divide with zeros, and to remove the
        padding from the outputs. `f` sees the padded rows: pass a vector of ones along with the
        batch, whose zeros then mark the padding. If False, such dimensions raise, as in
        `jax.shard_map`.
      per_device: whether to return what every device holds. Each output then has one additional
        leading dimension for each manual axis, in mesh order. You can leave out `out_specs` to look
        at outputs that fit no spec.

    One device needs the memory of all simulated devices together. Eager calls run one operation at
    a time, so wrap the result in `jax.jit`. Where devices disagree on a `cond`, both branches run.

    With `check_vma=True`, a collective that some devices skip because they take another branch or
    leave a loop earlier raises here. On real devices it hangs.
    """
    if out_specs is UNCHECKED and not per_device:
        raise FixArgumentsError("out_specs is missing: it is optional only with per_device=True.")
    check_specs(jax.tree.leaves((in_specs, out_specs)))

    @functools.wraps(f)
    def call(*args: Any) -> Any:
        traced_mesh = _TracedMesh.of(mesh, axis_names)
        padding = Padding(in_specs, traced_mesh.sizes) if pad else None
        args = padding.pad(args) if padding else args
        options = {"in_specs": in_specs, "axis_names": axis_names, "check_vma": check_vma}
        if out_specs is not UNCHECKED:
            real = jax.shard_map(f, mesh=traced_mesh.mesh, out_specs=out_specs, **options)
            if not per_device:
                outputs = _run_traced(real, args, in_specs, traced_mesh)
                return padding.unpad(outputs, out_specs) if padding else outputs
            _trace(real, args, in_specs, traced_mesh)  # for its errors
        view = jax.shard_map(
            functools.wraps(f)(lambda *a: jax.tree.map(lambda x: _expanded(x), f(*a))),
            mesh=traced_mesh.mesh,
            out_specs=PartitionSpec(tuple(traced_mesh.sizes)),
            **options,
        )
        stacked = _run_traced(view, args, in_specs, traced_mesh)
        sizes = traced_mesh.sizes.values()
        return jax.tree.map(lambda x: x.reshape(*sizes, *x.shape[1:]), stacked)

    return call


def _expanded(x: Any) -> jax.Array:
    return jnp.expand_dims(jnp.asarray(x), 0)


class _TracedMesh:
    """The mesh to trace on, the sizes of its manual axes in order, and the context to enter."""

    def __init__(self, mesh: AbstractMesh, sizes: dict[str, int], context: Any) -> None:
        self.mesh = mesh
        self.sizes = sizes
        self.context = context

    @classmethod
    def of(cls, mesh: Any, axis_names: Set[str]) -> "_TracedMesh":
        context_mesh = jax.sharding.get_abstract_mesh()
        if isinstance(mesh, Mapping):
            axis_types = (AxisType.Auto,) * len(mesh)
            mesh = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=axis_types)
        mesh = context_mesh if mesh is None else getattr(mesh, "abstract_mesh", mesh)
        if not isinstance(mesh, AbstractMesh) or mesh.empty or mesh.manual_axes:
            if isinstance(mesh, AbstractMesh) and mesh.manual_axes:
                raise FixArgumentsError(
                    f"the mesh is already manual over {mesh.manual_axes}: simulate the outermost "
                    "shard_map, and use jax.shard_map inside it."
                )
            return cls(mesh, {}, contextlib.nullcontext)  # JAX will raise
        manual = [a for a in mesh.axis_names if not axis_names or a in axis_names]
        axis_types = tuple(
            AxisType.Auto if name in manual else axis_type
            for name, axis_type in zip(mesh.axis_names, mesh.axis_types, strict=True)
        )
        auto = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=axis_types)
        sizes = {name: mesh.shape[name] for name in manual}
        if context_mesh.empty or context_mesh == mesh:
            return cls(auto, sizes, functools.partial(jax.sharding.use_abstract_mesh, auto))
        return cls(mesh, sizes, contextlib.nullcontext)  # two meshes: JAX will raise


def _run_traced(real: Callable[..., Any], args: Any, in_specs: Any, mesh: _TracedMesh) -> Any:
    program, values, tree = _trace(real, args, in_specs, mesh)
    no_mesh = AbstractMesh((), (), axis_types=())
    with jax.sharding.use_abstract_mesh(no_mesh):
        outputs = simulated(program)(*program.consts, *values)
    return jax.tree.unflatten(tree, outputs)


def _trace(real: Callable[..., Any], args: Any, in_specs: Any, mesh: _TracedMesh) -> Any:
    """The program of the real `shard_map`, its arguments, and the structure of its results."""
    leaves, tree = jax.tree.flatten(args)
    static = _static_leaves(in_specs, args)
    values = [x for x, is_static in zip(leaves, static, strict=True) if not is_static]
    for x in values:
        if types.explicit_sharding(x) is not None:
            raise FixArgumentsError(
                f"an argument has a sharding in its type ({jax.typeof(x)}), but the simulation "
                "runs on one device. Pass jax.device_put(x, jax.devices()[0])."
            )

    def call(*values: Any) -> Any:
        remaining = iter(values)
        both = zip(leaves, static, strict=True)
        all_leaves = [x if is_static else next(remaining) for x, is_static in both]
        return real(*jax.tree.unflatten(tree, all_leaves))

    with mesh.context():
        program, shape = jax.make_jaxpr(call, return_shape=True)(*values)
    return program, values, jax.tree.structure(shape)


def _static_leaves(in_specs: Any, args: tuple[Any, ...]) -> list[bool]:
    """Which leaves of the arguments have None as their spec: they are passed to `f` unchanged."""
    try:
        specs = jax.tree.broadcast(in_specs, args, is_leaf=lambda x: x is None)
    except ValueError:
        return [False for _ in jax.tree.leaves(args)]  # JAX will raise
    return [spec is None for spec in jax.tree.leaves(specs, is_leaf=lambda x: x is None)]

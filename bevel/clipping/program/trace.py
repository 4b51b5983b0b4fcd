"""The program of one example: traced, nested jits opened, errors that name the user's line."""

import contextlib
import dataclasses
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Var
from jax.sharding import AbstractMesh

from bevel import errors
from bevel.clipping.arguments import Call, Leaves, example_key_type
from bevel.clipping.program.equations import inline_calls
from bevel.clipping.program.isolation import one_at_a_time, refuse_side_effects
from bevel.errors import BevelError, FixLossError
from bevel.sharding import types
from bevel.sharding.axes import MeshLayout, axes_of_inner_shard_maps
from bevel.sharding.divisibility import one_example_may_be_smaller_than_the_mesh


@dataclasses.dataclass(frozen=True)
class ExampleFunction:
    """How one example is cut from the batch and handed to the user's function."""

    fun: Callable[..., Any]
    call: Call
    has_aux: bool
    keep_batch_dim: bool

    def __call__(self, leaves: Leaves) -> tuple[Any, Any]:
        """`(value, aux)` of the user's function."""
        args, kwargs = self.call.arguments(leaves)
        result = self.fun(*args, **kwargs)
        if not self.has_aux:
            return result, None
        if not (isinstance(result, tuple) and len(result) == 2):
            raise FixLossError(
                "has_aux=True, but the function returned "
                f"{type(result).__name__}: return (value, aux)."
            )
        return result

    def types(self, leaves: Leaves, mesh: AbstractMesh | None, times: int = 1) -> Leaves:
        """The types of one example's arguments; `times` lengthens the batch dimension it sees.

        Explicit shardings are moved to `mesh`.
        """

        def one(leaf: Any) -> Any:
            shape = tuple(leaf.shape[1:])
            if self.keep_batch_dim:
                return types.retyped(leaf, (times, *shape), mesh)
            return types.retyped(leaf, (*(times * n for n in shape[:1]), *shape[1:]), mesh, 1)

        def whole(leaf: Any) -> Any:
            return leaf if mesh is None else types.retyped(leaf, leaf.shape, mesh)

        return Leaves(
            [whole(x) for x in leaves.params],
            [one(x) for x in leaves.batch],
            [example_key_type(key) for key in leaves.keys],
            [whole(x) for x in leaves.constants],
        )


@dataclasses.dataclass(frozen=True)
class TracedExample:
    """A traced function of one example: flat inputs in the order of `Leaves`, flat outputs."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    mesh: AbstractMesh | None  # with Explicit axes: the mesh that it was traced under


def trace(
    function: Callable[[Leaves], Any],
    arguments: Leaves,
    mesh: AbstractMesh | None = None,
    to_batch: bool = False,
) -> TracedExample:
    """Traces `function` at one example. Nothing is run, so no dimension has to divide the mesh.

    `to_batch`: the program is complete and will be batched, so its equations are made to see one
    example each.
    """
    flat, in_tree = jax.tree.flatten(arguments)
    trees = []

    def flat_function(*inputs: Any) -> list[Any]:
        outputs, tree = jax.tree.flatten(function(jax.tree.unflatten(in_tree, inputs)))
        trees.append(tree)
        return outputs

    with contextlib.ExitStack() as context:
        context.enter_context(one_example_may_be_smaller_than_the_mesh())
        if mesh is not None:
            # By way of no mesh at all: JAX does not let one context change the size of another.
            for step in (AbstractMesh((), ()), mesh):
                context.enter_context(jax.sharding.use_abstract_mesh(step))
            context.enter_context(jax.remove_size_one_mesh_axis_from_type(True))
        jaxpr = jax.make_jaxpr(flat_function)(*flat)
        jaxpr = one_at_a_time(jaxpr) if to_batch else jaxpr
        refuse_side_effects(jaxpr)
        jaxpr = inline_calls(jaxpr, flat)
    return TracedExample(jaxpr, trees[0], mesh)


def _trace_where_it_fits(
    example: ExampleFunction, leaves: Leaves, layout: MeshLayout
) -> tuple[TracedExample, Leaves]:
    """Traces the function; on Explicit axes, failing that, where the batch axes have one place.

    JAX's sharding types treat a batch dimension of size 1 unlike a batch: a reshape drops it. Axes
    of one place are kept out of the types, so there a reshape is as free as it is for a batch,
    while what the function asks for stays on record. A program that communicates over a batch
    axis in a shard_map of its own would be another one there, and is not taken.
    """
    mesh = layout.explicit_mesh
    arguments = example.types(leaves, mesh)
    try:
        return trace(example, arguments, mesh), arguments
    except BevelError:
        raise
    except Exception:
        if mesh is None or not layout.batch_axes:
            raise
        shrunk = types.with_axes_of_size_one(mesh, layout.batch_axes)
        arguments = example.types(leaves, shrunk)
        with contextlib.suppress(Exception):
            program = trace(example, arguments, shrunk)
            if not set(layout.batch_axes) & axes_of_inner_shard_maps(program.jaxpr.jaxpr):
                return program, arguments
        raise


def trace_loss(
    example: ExampleFunction, leaves: Leaves, layout: MeshLayout
) -> tuple[TracedExample, Leaves]:
    """Traces the user's function, and says what to change where that is not possible.

    Also returns the types of the arguments that it was traced with.
    """
    size = "of batch size 1" if example.keep_batch_dim else "without its batch dimension"
    try:
        program, arguments = _trace_where_it_fits(example, leaves, layout)
    except BevelError:
        raise
    except Exception as error:
        raise FixLossError(
            f"the function cannot be traced for one example {size}, which per-example clipping "
            f"needs{_user_line(error)}. JAX says: {_first_paragraph(error)}\n"
            "Write the function so that it accepts one example; keep_batch_dim says whether the "
            "example has a batch dimension of size 1. Python values that steer the function are "
            "best bound with functools.partial."
        ) from error
    ordered = [e for e in program.jaxpr.effects if type(e).__name__.startswith("Ordered")]
    if ordered:
        raise FixLossError(
            "the function has an ordered side effect (such as debug.print(..., ordered=True)), and "
            "examples have no order. Pass ordered=False, or move the effect out of the loss."
        )
    return program, arguments


def check_scalar_loss(value: Any) -> None:
    """Raises unless the loss of one example is a real scalar."""
    if not hasattr(value, "shape"):
        raise FixLossError(
            f"the loss returned a {type(value).__name__}, but a gradient needs a scalar: return "
            "one number, or (number, aux) with has_aux=True."
        )
    shape, dtype = tuple(value.shape), value.dtype
    if shape != ():
        raise FixLossError(
            f"the loss of one example has shape {shape}, but a gradient needs a scalar: reduce it, "
            "for instance with jnp.mean, inside the loss."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise FixLossError(f"the loss has dtype {dtype}: return a real floating-point number.")


def _user_line(error: Exception) -> str:
    """Where in the user's code an error arose, as ', at file:line: code'."""
    libraries = tuple(os.path.dirname(m.__file__) for m in (jax, errors) if m.__file__)
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if not f.filename.startswith((*libraries, "<"))]
    return f", at {mine[-1].filename}:{mine[-1].lineno}: {mine[-1].line}" if mine else ""


def _first_paragraph(error: Exception) -> str:
    return str(error).split("\n\n")[0][:500]


def trace_gradient(
    one: Callable[[Leaves], Any], arguments: Leaves, loss: TracedExample, call: Call
) -> TracedExample:
    """Traces the differentiated program of one example, to be batched."""
    try:
        return trace(one, arguments, loss.mesh, to_batch=True)
    except BevelError:
        raise
    except Exception as error:
        raise FixLossError(
            f"the gradient of one example cannot be computed{_blocked_path(loss, call)}"
            f"{_user_line(error)}. JAX says: {_first_paragraph(error)}\n"
            "Give that operation a gradient with jax.custom_vjp, or stop the gradient before it "
            "with jax.lax.stop_gradient if it should have none."
        ) from error


@contextlib.contextmanager
def explained_batching() -> Iterator[None]:
    """Says what to do where JAX cannot run an operation for many examples at once."""
    try:
        yield
    except BevelError:
        raise
    except Exception as error:
        raise FixLossError(
            f"the function cannot be run for all examples of a batch at once{_user_line(error)}. "
            f"JAX says: {_first_paragraph(error)}\n"
            "Every operation in it must work under jax.vmap: callbacks need a vmap_method, and "
            "jax.custom_batching.sequential_vmap runs any other operation in a loop."
        ) from error


# Operations that JAX cannot differentiate backwards.
NO_GRADIENT = {"while", "pure_callback", "io_callback", "infeed", "outfeed"}


def _blocked_path(loss: TracedExample, call: Call) -> str:
    """Which parameters reach which operation without a gradient, as text."""
    jaxpr = loss.jaxpr.jaxpr
    reached = {var: {i} for i, var in enumerate(jaxpr.invars[: len(call.param_paths)])}
    for eqn in jaxpr.eqns:
        sources = set().union(*(reached.get(v, set()) for v in eqn.invars if isinstance(v, Var)))
        if sources and eqn.primitive.name in NO_GRADIENT:
            paths = ", ".join(call.param_paths[i] for i in sorted(sources))
            return f": {paths} reaches the loss through {eqn.primitive.name}"
        if sources:
            reached.update(dict.fromkeys(eqn.outvars, sources))
    return ""

"""Traces the program of one example, with nested jits inlined.

Errors name the line of the user's code.
"""

import contextlib
import dataclasses
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Var
from jax.sharding import AbstractMesh

from bevel import errors
from bevel.checks import in_one_line
from bevel.clipping.arguments import Call, Leaves, example_key_type
from bevel.clipping.program.equations import inline_calls
from bevel.clipping.program.isolation import isolate_examples, refuse_side_effects
from bevel.errors import BevelError, FixLossError
from bevel.sharding import types
from bevel.sharding.axes import MeshLayout, axes_of_inner_shard_maps
from bevel.sharding.divisibility import allow_uneven_shardings


@dataclasses.dataclass(frozen=True)
class ExampleFunction:
    """The user's function, as a function of the leaves of one example."""

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
                f"has_aux=True, but the function returned {type(result).__name__}. "
                "Return (value, aux)."
            )
        return result

    def types(self, leaves: Leaves, mesh: AbstractMesh | None, times: int = 1) -> Leaves:
        """The types of one example's arguments, with Explicit shardings on `mesh`.

        `times` multiplies the length of the batch dimension, or of the first one without it.
        """

        def one(leaf: Any) -> Any:
            shape = tuple(leaf.shape[1:])
            if self.keep_batch_dim:
                return types.retyped(leaf, (times, *shape), mesh)
            return types.retyped(leaf, (*(times * n for n in shape[:1]), *shape[1:]), mesh, 1)

        def shared(leaf: Any) -> Any:
            return leaf if mesh is None else types.retyped(leaf, leaf.shape, mesh)

        return Leaves(
            [shared(x) for x in leaves.params],
            [one(x) for x in leaves.batch],
            [example_key_type(key) for key in leaves.keys],
            [shared(x) for x in leaves.constants],
        )


@dataclasses.dataclass(frozen=True)
class TracedExample:
    """A traced function of one example. Its flat inputs are in the order of `Leaves`."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    mesh: AbstractMesh | None  # the mesh with Explicit axes that it was traced under, if any


def trace(
    function: Callable[[Leaves], Any],
    arguments: Leaves,
    mesh: AbstractMesh | None = None,
    to_batch: bool = False,
    inline: bool = True,
) -> TracedExample:
    """Traces `function` for one example. Nothing runs, so dimensions need not divide the mesh.

    With `to_batch`, the program is complete and will be batched, so its equations are rewritten to
    isolate the examples of a batch from each other. `inline` removes nested jits.
    """
    flat, in_tree = jax.tree.flatten(arguments)
    trees = []

    def flat_function(*inputs: Any) -> list[Any]:
        outputs, tree = jax.tree.flatten(function(jax.tree.unflatten(in_tree, inputs)))
        trees.append(tree)
        return outputs

    with contextlib.ExitStack() as context:
        context.enter_context(allow_uneven_shardings())
        if mesh is not None:
            # Enter the empty mesh first: JAX does not let a context change the size of a mesh.
            for step in (AbstractMesh((), ()), mesh):
                context.enter_context(jax.sharding.use_abstract_mesh(step))
            context.enter_context(jax.remove_size_one_mesh_axis_from_type(True))
        jaxpr = jax.make_jaxpr(flat_function)(*flat)
        jaxpr = isolate_examples(jaxpr) if to_batch else jaxpr
        refuse_side_effects(jaxpr)
        jaxpr = inline_calls(jaxpr, flat) if inline else jaxpr
    return TracedExample(jaxpr, trees[0], mesh)


def _trace_where_it_fits(
    example: ExampleFunction, leaves: Leaves, layout: MeshLayout
) -> tuple[TracedExample, Leaves]:
    """Traces the function. If that fails on Explicit axes, retries with batch axes of size 1.

    JAX's sharding types treat a batch dimension of size 1 differently from a batch: a reshape drops
    its sharding. Mesh axes of size 1 are kept out of the types, so reshapes then work as they do
    for a batch, while the program still records the shardings that the function requests. A program
    with an inner shard_map over a batch axis would change on such a mesh, so it is rejected.
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
    """Traces the user's function, and raises an error with advice if it cannot be traced.

    Also returns the types of the arguments that it was traced with.
    """
    size = "of batch size 1" if example.keep_batch_dim else "without its batch dimension"
    rows = "a batch dimension of size 1" if example.keep_batch_dim else "no batch dimension"
    try:
        program, arguments = _trace_where_it_fits(example, leaves, layout)
    except BevelError:
        raise
    except Exception as error:
        _check_signature(example, leaves, error)
        raise FixLossError(
            f"the function cannot be traced for one example {size}, which per-example clipping "
            f"needs{_user_line(error)}. {type(error).__name__}: {_first_paragraph(error)}\n"
            f"The function must accept one example, which has {rows} "
            f"(keep_batch_dim={example.keep_batch_dim}). Bind Python values that control the "
            "function with functools.partial."
        ) from error
    ordered = [e for e in program.jaxpr.effects if type(e).__name__.startswith("Ordered")]
    if ordered:
        raise FixLossError(
            "the function has an ordered side effect, such as debug.print(..., ordered=True), but "
            "examples have no order. Pass ordered=False, or move the effect out of the loss."
        )
    return program, arguments


def _check_signature(example: ExampleFunction, leaves: Leaves, error: Exception) -> None:
    """Raises if the function could not be called because of its signature."""
    args, kwargs = example.call.arguments(leaves)
    try:
        signature = inspect.signature(example.fun)
        signature.bind(*args, **kwargs)
    except ValueError:  # it has no signature
        return
    except TypeError as mismatch:
        if not callable(example.fun):
            return
        raise FixLossError(
            f"the function takes {signature}, but it was called with {len(args)} arguments: "
            f"{mismatch}. Call the clipped function with the arguments of the loss. If one of them "
            "is a random key, name it with prng_argnum; bind others with functools.partial."
        ) from error


def check_scalar_loss(value: Any) -> None:
    """Raises unless the loss of one example is a real scalar."""
    if not hasattr(value, "shape"):
        raise FixLossError(
            f"the loss returned a {type(value).__name__}, but a gradient needs a scalar. Return "
            "one number, or (number, aux) with has_aux=True."
        )
    shape, dtype = tuple(value.shape), value.dtype
    if shape != ():
        raise FixLossError(
            f"the loss of one example has shape {shape}, but a gradient needs a scalar. Reduce it "
            "inside the loss, for instance with jnp.mean."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise FixLossError(f"the loss has dtype {dtype}. Return a real floating-point number.")


def _user_line(error: Exception) -> str:
    """The line of the user's code that raised an error, as ', at file:line: code'."""
    libraries = tuple(os.path.dirname(m.__file__) for m in (jax, errors) if m.__file__)
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if not f.filename.startswith((*libraries, "<"))]
    return f", at {mine[-1].filename}:{mine[-1].lineno}: {mine[-1].line}" if mine else ""


def _first_paragraph(error: Exception) -> str:
    return in_one_line(str(error).split("\n\n")[0], 300)


def trace_gradient(
    one: Callable[[Leaves], Any], arguments: Leaves, loss: TracedExample, call: Call
) -> TracedExample:
    """Traces the differentiated program of one example, which will be batched."""
    try:
        return trace(one, arguments, loss.mesh, to_batch=True)
    except BevelError:
        raise
    except Exception as error:
        raise FixLossError(
            f"the gradient of one example cannot be computed{_blocked_path(loss, call)}"
            f"{_user_line(error)}. JAX says: {_first_paragraph(error)}\n"
            "Give that operation a gradient with jax.custom_vjp, or apply jax.lax.stop_gradient to "
            "its input if it should have none."
        ) from error


@contextlib.contextmanager
def explained_batching() -> Iterator[None]:
    """Turns JAX's error for an operation that cannot be batched into one with advice."""
    try:
        yield
    except BevelError:
        raise
    except Exception as error:
        raise FixLossError(
            f"the function cannot be run for all examples of a batch at once{_user_line(error)}. "
            f"JAX says: {_first_paragraph(error)}\n"
            "Every operation in it must work under jax.vmap. Wrap this one in "
            "jax.custom_batching.sequential_vmap, which runs it in a loop over the examples."
        ) from error


# Operations that JAX cannot differentiate in reverse mode.
NO_GRADIENT = {"while", "pure_callback", "io_callback", "infeed", "outfeed"}


def _blocked_path(loss: TracedExample, call: Call) -> str:
    """Names the parameters that reach an operation without a gradient, and that operation."""
    jaxpr = loss.jaxpr.jaxpr
    reached = {var: {i} for i, var in enumerate(jaxpr.invars[: len(call.param_paths)])}
    for eqn in jaxpr.eqns:
        sources = set().union(*(reached.get(v, set()) for v in eqn.invars if isinstance(v, Var)))
        if sources and eqn.primitive.name in NO_GRADIENT:
            paths = in_one_line(", ".join(call.param_paths[i] for i in sorted(sources)))
            return f": {paths} reaches the loss through {eqn.primitive.name}"
        if sources:
            reached.update(dict.fromkeys(eqn.outvars, sources))
    return ""

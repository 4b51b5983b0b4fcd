import jax
import jax.numpy as jnp
import pytest
from compiled_texts import GPU_LOOP, GPU_LOOP_OF_UNSTATED_LENGTH, GPU_WRAPPED

from bevel.errors import FixArgumentsError
from bevel.inspection import hlo


@pytest.mark.parametrize(
    "text, size, width",
    [
        ("f32[2,3]{1,0}", 6, 24),
        ("bf16[8]{0:T(1024)(128)S(1)}", 8, 16),
        ("pred[]", 1, 1),
        ("u4[5]", 5, 3),
        ("f8e4m3fn[7]{0}", 7, 7),
        ("c64[2]", 2, 16),
        ("token[]", 1, 0),
        ("f32[<=8,2]", 16, 64),
    ],
)
def test_arrays_have_the_bytes_of_their_dtype(text, size, width):
    array = hlo.parse_shape(text)
    assert (array.size, array.bytes) == (size, width)


def test_tuples_nest():
    shape = hlo.parse_shape("((f32[2]{0}, s32[]), /*index=1*/(bf16[4]{0}), u32[])")
    assert [a.bytes for a in hlo.arrays(shape)] == [8, 4, 8, 4]
    assert len(shape) == 3


def test_attributes_keep_their_braces_and_quotes():
    line = '  ROOT %a = f32[2]{0} add(%b, %c), x={1, {2}}, metadata={op_name="f, }(" id=3}, y=4'
    read = hlo.parse_instruction(line)
    assert read.is_root and read.operands == ("b", "c")
    assert read.attribute("x") == "{1, {2}}"
    assert read.attribute("metadata") == '{op_name="f, }(" id=3}'
    assert read.attribute("y") == "4" and read.attribute("z") is None


def test_text_without_percent_signs():
    read = hlo.parse_instruction("done = f32[8]{0} all-reduce-done(start.1)")
    assert read.operands == ("start.1",)


def runs(text, **options):
    return hlo.runs(hlo.parse(text), lambda run: 1.0, **options)


@pytest.mark.parametrize("text", [GPU_LOOP, GPU_LOOP_OF_UNSTATED_LENGTH])
def test_bodies_run_as_often_as_their_loop(text):
    times = {run.instruction.opcode: (run.times, run.loops) for run in runs(text)}
    assert times["all-gather"] == (3, (3,)) and times["while"] == (1, ())


def test_wrapped_bodies_are_entered_once():
    found = [run.instruction.opcode for run in runs(GPU_WRAPPED)]
    assert found.count("all-to-all") == 1 and found.count("all-reduce-start") == 1
    assert "add" not in found  # a reducer is no step of the program


def test_loops_inside_loops_multiply():
    def inner(x, _):
        return jax.lax.fori_loop(0, 5, lambda i, x: jnp.sin(x), x), None

    compiled = jax.jit(lambda x: jax.lax.scan(inner, x, length=7)[0]).lower(jnp.ones(3)).compile()
    found = runs(compiled.as_text())
    assert max(run.times for run in found if run.instruction.opcode == "sine") == 35


def test_a_loop_until_data_say_so_has_no_count():
    def until(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: jnp.sin(x) + 1, x)

    found = runs(jax.jit(until).lower(jnp.ones(3)).compile().as_text())
    (run,) = [run for run in found if run.instruction.opcode == "sine"]
    assert run.loops == (None,) and run.times == 1


def test_one_branch_counts():
    def either(p, x):
        return jax.lax.cond(p, lambda: jnp.sin(x), lambda: x @ jnp.exp(x) @ x)

    text = jax.jit(either).lower(True, jnp.ones((4, 4))).compile().as_text()
    for branch, taken in ((0, "exponential"), (-1, "sine"), (None, "exponential")):
        found = {run.instruction.opcode: run for run in runs(text, branch=branch)}
        assert found["sine"].in_branch and found["exponential"].in_branch
        assert (found["sine"].times, found["exponential"].times) == (
            (1, 0) if taken == "sine" else (0, 1)
        )


def test_other_text_is_refused():
    with pytest.raises(FixArgumentsError, match="no ENTRY"):
        hlo.parse("module @jit_f { }")

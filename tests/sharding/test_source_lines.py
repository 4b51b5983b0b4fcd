import re

import jax
import jax.numpy as jnp
from compiled_texts import TABLES

from bevel.sharding.source_lines import BEVEL_FOLDER, SourceLine, SourceLines, keep_line, user_line

USER, LIBRARY = (
    SourceLine("/home/me/train.py", 17, "loss"),
    SourceLine("/x/site-packages/flax/a.py", 3),
)
BEVEL = SourceLine(BEVEL_FOLDER + "/clipping/batch.py", 5)


def test_frames_are_followed_outwards():
    lines = SourceLines(TABLES)
    stack = lines.stack('{op_name="update" stack_frame_id=3}')
    assert [line.line for line in stack] == [90, 17, 36]
    assert lines.of("{stack_frame_id=3}") == USER


def test_older_texts_name_one_line():
    assert SourceLines("").of('{source_file="/home/me/a.py" source_line=4}') == SourceLine(
        "/home/me/a.py", 4
    )
    assert SourceLines("").of('{op_name="x"}') is None


def test_the_users_line_is_outside_of_libraries():
    assert user_line([BEVEL, LIBRARY, USER]) == USER
    assert user_line([BEVEL, LIBRARY]) == LIBRARY
    assert user_line([BEVEL]) == BEVEL


def line_of_sine(function):
    text = jax.jit(function).lower(jnp.ones(3)).compile().as_text()
    return SourceLines(text).of(re.findall(r"metadata=\{[^}]*sin[^}]*\}", text)[0])


def test_what_is_evaluated_again_keeps_its_line():
    def sine(x):
        return jnp.sin(x)

    (eqn,) = jax.make_jaxpr(sine)(jnp.ones(3)).eqns

    def again(x):
        with keep_line(eqn):
            return eqn.primitive.bind(x, **eqn.params)

    def without(x):
        return eqn.primitive.bind(x, **eqn.params)

    written = line_of_sine(sine)
    assert written.function.endswith("sine")
    assert line_of_sine(again) == written
    assert line_of_sine(without) != written

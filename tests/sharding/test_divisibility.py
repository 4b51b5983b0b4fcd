"""While one example is traced, and then only, a dimension may be smaller than the mesh."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import core, pjit
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding.divisibility import allow_uneven_shardings as relaxed

ONE = np.ones((1, 2), np.float32)
NAMES = [(pjit, "pjit_check_aval_sharding"), (core, "_check_divisibility")]
REFUSED = "is partitioned 8 times, but .*dimension size"


@pytest.fixture(scope="module")
def rows():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, P("data"))


def nested(rows):
    inner = jax.jit(jnp.tanh, in_shardings=rows, out_shardings=rows)
    return lambda x: inner(x) + 1


def test_a_nested_jit_written_for_the_batch_is_traced_at_one_example(rows):
    with pytest.raises(ValueError, match=REFUSED):
        jax.make_jaxpr(nested(rows))(ONE)
    with relaxed():
        program = jax.make_jaxpr(nested(rows))(ONE)
    assert [a.shape for a in program.out_avals] == [(1, 2)]


def test_an_explicit_reshard_is_traced_at_one_example():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))

    def trace():
        return jax.make_jaxpr(lambda x: jax.sharding.reshard(x, P("data")))(ONE)

    with jax.set_mesh(mesh):
        with pytest.raises(ValueError, match=REFUSED):
            trace()
        with relaxed():
            assert trace().out_avals[0].sharding.spec == P("data", None)
        with pytest.raises(ValueError, match=REFUSED):
            trace()


def test_what_was_traced_is_refused_when_it_is_called(rows):
    inner = jax.jit(jnp.tanh, in_shardings=rows, out_shardings=rows)
    with relaxed():
        jax.make_jaxpr(lambda x: inner(x))(ONE)
    with pytest.raises(ValueError, match=REFUSED):
        inner(ONE)
    with pytest.raises(ValueError, match=REFUSED):
        jax.jit(jnp.sin, in_shardings=rows)(ONE)


def test_what_was_traced_is_refused_when_it_is_traced_again(rows):
    inner = jax.jit(jnp.tanh, in_shardings=rows, out_shardings=rows)
    with relaxed():
        jax.make_jaxpr(lambda x: inner(x))(ONE)
    with pytest.raises(ValueError, match=REFUSED):
        jax.jit(lambda x: inner(x) + 1)(ONE)


def test_a_rank_that_does_not_fit_is_refused_all_the_same(rows):
    with relaxed(), pytest.raises(ValueError, match=r"rank|ndim|dimension"):
        jax.make_jaxpr(nested(rows))(np.float32(1))


def test_other_threads_are_not_relaxed(rows):
    outcome = []

    def elsewhere():
        try:
            jax.make_jaxpr(nested(rows))(ONE)
        except ValueError as error:
            outcome.append(str(error))

    with relaxed():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(timeout=60)
        jax.make_jaxpr(nested(rows))(ONE)
    assert len(outcome) == 1 and re.search(REFUSED, outcome[0])


def test_names_are_restored_after_an_exception():
    before = [getattr(module, name) for module, name in NAMES]
    with pytest.raises(KeyError, match="mine"), relaxed():
        assert all(
            getattr(module, name) is not check
            for (module, name), check in zip(NAMES, before, strict=True)
        )
        raise KeyError("mine")
    assert [getattr(module, name) for module, name in NAMES] == before


def test_contexts_may_be_nested(rows):
    before = [getattr(module, name) for module, name in NAMES]
    with relaxed():
        with relaxed():
            jax.make_jaxpr(nested(rows))(ONE)
        jax.make_jaxpr(nested(rows))(ONE)
    assert [getattr(module, name) for module, name in NAMES] == before


def test_a_jax_without_these_names_keeps_its_own_checks(rows, monkeypatch):
    for module, name in NAMES:
        monkeypatch.delattr(module, name)
    with relaxed():
        assert not any(hasattr(module, name) for module, name in NAMES)


def test_two_threads_trace_at_the_same_time(rows):
    failures = []

    def trace():
        try:
            for _ in range(5):
                with relaxed():
                    jax.make_jaxpr(nested(rows))(ONE)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=trace) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures

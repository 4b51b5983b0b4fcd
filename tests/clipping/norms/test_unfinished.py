"""Norms that are finished together are those that are finished one by one."""

import jax.numpy as jnp
import numpy as np

from bevel.clipping.norms import quick_norm, unfinished_norm
from bevel.clipping.norms.unfinished import finish_together

rng = np.random.default_rng(0)


def test_norms_finished_together_are_those_finished_alone():
    shapes = [(4, 3, 5), (4, 7), (4, 3, 5), (4, 2, 2)]
    gradients = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    stacks = finish_together([unfinished_norm(x) for x in gradients])
    assert sorted(i for stack in stacks for i in stack.numbers) == list(range(len(shapes)))
    for stack in stacks:
        for row, number in enumerate(stack.numbers):
            alone = quick_norm(gradients[number])
            for together, own in zip(stack.measured.norm, alone.norm, strict=True):
                np.testing.assert_allclose(together[row], own, rtol=1e-6)
            np.testing.assert_array_equal(stack.measured.sound[row], alone.sound)


def test_norms_of_different_dtypes_are_not_stacked():
    gradients = [jnp.ones((2, 3), dtype) for dtype in (jnp.float32, jnp.bfloat16)]
    sums = [unfinished_norm(x) for x in gradients]
    assert [x.sums[0].dtype for x in sums] == [jnp.float32, jnp.float32]
    (stack,) = finish_together(sums)
    np.testing.assert_allclose(stack.measured.norm.estimate, np.sqrt(3), rtol=1e-6)

"""Scores of canaries: how much what a run released speaks for each canary being held in.

A bound from the scores is valid for any scores, so a wrong model of the run cannot make it too
high. A good model makes it tight: the best score is the log-likelihood ratio.

Step t releases x_t = s_t + (C^-1 z)_t, where s_t is the clipped sum and z is Gaussian. With the
contribution d of one unit, and u_t = 1 where the canary is used, y = C x is d C u + z: the noise is
independent again, and the log-likelihood ratio for a known pattern of uses u is
(d <C u, y> - d^2 |C u|^2 / 2) / sigma^2. The attacker does not know u, and averages the likelihood
over the patterns that the sampler draws:

- Poisson batches, if there are many steps: uses are independent, so the average is a product over
  steps. The columns of C that belong to different uses do not overlap, because bands do not span
  two uses. If the steps take turns between groups, the group is unknown, and averaged over.
- other samplers: the mean over patterns that the sampler itself draws with another seed.

The attacker knows all other examples. If the sampler draws units independently of each other, the
guarantee also holds for an attacker who knows when the others were used (`independent_units` has
the proof). Their contribution is then subtracted from x before anything else.

The attacker does not believe what the plan says about z. If there are enough canaries, the
covariance of y between steps is estimated from them, for each leaf, and y is multiplied by its
inverse root: noise that is too small, or that repeats itself, then stands out. A leaf without noise
has scores of its own.
Otherwise, if there are many steps and few uses, the gradients of other examples are removed by the
median over the steps of each coordinate, and the standard deviation is that of what is left.
"""

from typing import Any

import numpy as np
from scipy import special

from bevel.auditing.arguments import Floats
from bevel.auditing.independent_units import sampler_of, units_are_independent
from bevel.batch_selection import CyclicPoissonSampling
from bevel.execution_plan import DPExecutionPlan

_PATTERNS = 512  # drawn from the sampler
_FEWEST_CANARIES, _CANARIES_PER_STEP = 64, 10  # for a covariance between steps
_FEWEST_STEPS = 50  # for a median over steps
_MOST_USES = 0.2  # of the steps, so that uses do not move the median
_NORMAL_MAD = 1.4826  # the standard deviation over the median absolute deviation
_NORMAL_QUARTER = 0.3186  # the absolute value that a quarter of standard normal draws is below
_FAR = 3.0  # standard deviations
_MARGIN = 0.05  # of a standard deviation: the scales are estimates
_CLEAR = 6.0  # contributions over noise: from here on, the noise hides nothing
_SMALLEST = 1e-3  # of the stated noise: the least that counts as noise
_SMALLEST_SHARE = 1e-2  # of the variance: the least that a combination of steps keeps
_LENGTHS = (1.0, 2.0, 4.0)  # of a contribution, over the clip norm
_CLEARLY = 5.0  # nats of evidence of all canaries of a leaf
_FEW_STEPS = 8  # patterns of so many steps are all drawn


def white_box_scores(observed: Floats, leaf: np.ndarray, plan: DPExecutionPlan) -> Floats:
    """Scores from the noised sums of every step at the coordinates of the canaries.

    Args:
      observed: the noised sums, of shape (steps, canaries).
      leaf: the leaf of each canary.
    """
    strategy = strategy_matrix(plan, len(observed))
    values = strategy @ np.asarray(observed, np.float64) / plan.noise_stddev
    size = plan.clip.l2_norm_bound / plan.noise_stddev
    scores = np.zeros(values.shape[1])
    for k in np.unique(leaf):
        own = leaf == k
        scores[own] = _scores_in_leaf(values[:, own], size, strategy, plan)
    return scores


def _scores_in_leaf(values: Floats, size: float, strategy: Floats, plan: DPExecutionPlan) -> Floats:
    steps, canaries = values.shape
    if canaries >= max(_FEWEST_CANARIES, _CANARIES_PER_STEP * steps):
        scale = _noise_scale(values)
        if np.min(size / scale) >= _CLEAR:
            return _scores_without_noise(values / scale, size / scale, plan)
        root = _inverse_root(values, scale, units_are_independent(plan))
        return _log_likelihood_ratio(root @ values, size, root @ strategy, plan)
    if steps >= _FEWEST_STEPS and _use_rate(plan) <= _MOST_USES:
        values = values - np.median(values, axis=0)
        scale = _NORMAL_MAD * np.median(np.abs(values), axis=0)
        scale = np.maximum(scale, _SMALLEST)
        return _log_likelihood_ratio(values / scale, size / scale, strategy, plan)
    return _log_likelihood_ratio(values, size, strategy, plan)


def _noise_scale(values: Floats) -> Floats:
    """The standard deviation of the noise of each step, (steps, 1).

    About half of the canaries are held out. The scale is that of the smallest quarter, so that
    canaries in use do not look like noise if there is none.
    """
    scale = np.quantile(np.abs(values), 0.25, axis=1, keepdims=True) / _NORMAL_QUARTER
    return np.maximum(scale, _SMALLEST)


def _scores_without_noise(values: Floats, size: Floats, plan: DPExecutionPlan) -> Floats:
    """Scores if the noise is far smaller than what a canary contributes: nearly all are certain.

    Canaries in use are then a large part of what the covariance between steps is estimated from,
    so it says nothing about the noise. It is not needed either: a canary that was used once stands
    out. The score is positive if a step has more than half of a contribution.
    """
    if plan.neighboring_relation.name == "REPLACE_ONE":
        return np.sum(size * values, axis=0)
    return np.max(np.square(values) - np.square(size / 2), axis=0)


def _inverse_root(values: Floats, scale: Floats, others_known: bool) -> Floats:
    """The inverse square root of the covariance of the noise between steps.

    Values far from zero are pulled in, so that canaries in use do not look like noise. If the
    contributions of others were subtracted, a combination of steps that varies more than the noise
    does so because of the canaries: it is kept as it is.
    """
    scaled = np.clip(values / scale, -_FAR, _FAR)
    variances, axes = np.linalg.eigh(scaled @ scaled.T / values.shape[1])
    # Independent noise has eigenvalues within this range by chance (Marchenko and Pastur, 1967).
    chance = _MARGIN + np.sqrt(values.shape[0] / values.shape[1])
    variances = np.where(np.abs(np.sqrt(np.abs(variances)) - 1) <= chance, 1, variances)
    if others_known:
        variances = np.minimum(variances, 1)
    return axes @ np.diag(np.maximum(variances, _SMALLEST_SHARE) ** -0.5) @ axes.T / scale.T


def last_model_scores(change: Floats) -> Floats:
    """Scores from the last model: how far it moved against the gradient of each canary.

    Args:
      change: last minus initial parameters at the coordinates of the canaries.
    """
    return -np.asarray(change, np.float64)


def strategy_matrix(plan: DPExecutionPlan, steps: int) -> Floats:
    """C, for the noise C^-1 z of the first steps."""
    matrix = plan.mechanism.noise_matrix
    column = np.zeros(steps)
    first = np.asarray(matrix.first_column(steps), np.float64)
    column[: len(first)] = first
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    dense = np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)
    normalized = getattr(matrix, "column_normalize_for_n", None)
    if normalized is not None:
        tails = np.cumsum(np.pad(first**2, (0, max(0, normalized - len(first)))))
        dense = dense / np.sqrt(tails[normalized - 1 - np.arange(steps)])
    return dense


def _log_likelihood_ratio(
    values: Floats, size: Any, strategy: Floats, plan: DPExecutionPlan
) -> Floats:
    """Of held in against held out: absent, or of the opposite sign under replace-one.

    The attacker does not believe the clip norm either: if contributions that are longer explain the
    values of all canaries clearly better, they are taken to be longer.
    """
    replaced = plan.neighboring_relation.name == "REPLACE_ONE"
    best, most = np.zeros(values.shape[1]), -np.inf
    for length in _LENGTHS:
        held_in = _log_likelihood(values, length * size, strategy, plan)
        held_out = np.zeros_like(held_in)
        if replaced:
            held_out = _log_likelihood(-values, length * size, strategy, plan)
        evidence = float(np.logaddexp(held_in, held_out).sum())
        if evidence > most + _CLEARLY:
            best, most = held_in - held_out, evidence
    return best


def _log_likelihood(values: Floats, size: Any, strategy: Floats, plan: DPExecutionPlan) -> Floats:
    """Of a canary with contributions of this size, relative to none."""
    sampler = sampler_of(plan)
    separate = isinstance(sampler, CyclicPoissonSampling) and plan.mechanism.noise_matrix.amplified
    if separate and len(values) > _FEW_STEPS:
        # One term for each step at which the canary may be used.
        gains = size * (strategy.T @ values)
        costs = np.square(size) * np.sum(strategy**2, axis=0)[:, None] / 2
        q = sampler.sampling_prob
        with np.errstate(divide="ignore"):
            terms = np.logaddexp(np.log1p(-q), np.log(q) + gains - costs)
        groups = [terms[g :: sampler.cycle_length] for g in range(sampler.cycle_length)]
        return _log_mean_exp(np.stack([group.sum(axis=0) for group in groups]))
    signals = strategy @ _patterns(plan, len(values))
    gains = size * (signals.T @ values)
    costs = np.square(size) * np.sum(signals**2, axis=0)[:, None] / 2
    return _log_mean_exp(gains - costs)


def _log_mean_exp(values: Floats) -> Floats:
    return special.logsumexp(values, axis=0) - np.log(len(values))


def _patterns(plan: DPExecutionPlan, steps: int) -> Floats:
    """Patterns of use, (steps, patterns), of random units in one draw of the sampler."""
    sampler, units = sampler_of(plan), plan.num_units or _PATTERNS
    kept = np.random.default_rng(0).permutation(units)[:_PATTERNS]
    column = np.full(units, -1)
    column[kept] = np.arange(len(kept))
    used = np.zeros((steps, len(kept)))
    for step, batch in zip(range(steps), sampler.batch_iterator(units, 0), strict=False):
        own = column[batch]
        used[step, own[own >= 0]] = 1
    return used


def _use_rate(plan: DPExecutionPlan) -> float:
    """The share of steps at which a unit is used, on average; 1 if it is not known."""
    if plan.expected_batch_size is None or plan.num_units is None:
        return 1.0
    return plan.expected_batch_size / plan.num_units

"""The slow truth of accounting: delta at an epsilon, by integrating over outputs."""

import numpy as np
import scipy.stats


def hockey_stick(epsilon, p, q, noise):
    """sup over events of P - exp(epsilon) Q, for mixtures {mean: weight} of Gaussians."""
    means = [*p, *q]
    x = np.linspace(min(means) - 12 * noise, max(means) + 12 * noise, 40_001)

    def density(mixture):
        return sum(w * scipy.stats.norm.pdf(x, mean, noise) for mean, w in mixture.items())

    excess = np.maximum(density(p) - np.exp(epsilon) * density(q), 0)
    return float(np.trapezoid(excess, x))


def either_way(epsilon, p, q, noise):
    return max(hockey_stick(epsilon, p, q, noise), hockey_stick(epsilon, q, p, noise))


def outputs(law, values):
    """The mixture of sums over random batches: {batch: chance} and the value of each example."""
    mixture = {}
    for batch, chance in law.items():
        total = round(sum(values[i] for i in batch), 12)
        mixture[total] = mixture.get(total, 0) + chance
    return mixture

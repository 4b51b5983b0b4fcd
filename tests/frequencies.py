"""Do observed outcomes follow a law? Pearson's chi-square, with seeds fixed by the tests."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import scipy.stats

# Tests are deterministic, so this is no rate of false alarms but a bound on how unlucky a fixed
# seed may be. A wrong law gives values far below it at the sample sizes used.
LEAST_P_VALUE = 1e-3


def p_value(outcomes: Iterable[Hashable], law: Mapping[Hashable, float]) -> float:
    """Of the hypothesis that `outcomes` are independent draws from `law`."""
    seen = Counter(outcomes)
    strange = set(seen) - {outcome for outcome, chance in law.items() if chance > 0}
    assert not strange, f"outcomes that cannot happen: {sorted(strange)[:5]}"
    assert abs(sum(law.values()) - 1) < 1e-9
    total = sum(seen.values())
    expected = {outcome: total * chance for outcome, chance in law.items() if chance > 0}
    assert min(expected.values()) >= 5, "too few draws for a chi-square test"
    if len(expected) == 1:
        return 1.0
    observed = [seen[outcome] for outcome in expected]
    return float(scipy.stats.chisquare(observed, list(expected.values())).pvalue)


def assert_follows(outcomes: Iterable[Hashable], law: Mapping[Hashable, float]) -> None:
    found = p_value(outcomes, law)
    assert found > LEAST_P_VALUE, f"the draws do not follow the law: p = {found}"


def uniform(outcomes: Iterable[Hashable]) -> dict[Hashable, float]:
    """The law under which all of `outcomes` are equally likely."""
    members = list(outcomes)
    return dict.fromkeys(members, 1 / len(members))

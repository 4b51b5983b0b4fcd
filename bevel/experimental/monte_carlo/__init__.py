"""Accounting by sampling, in parts: privacy losses, deltas from them, and what may be reported.

`bevel.accounting.epsilon` does all of it at once for the samplers of bevel, with bounds that hold
for whatever epsilon is asked for. These parts are for searches of one's own.
"""

from bevel.experimental.monte_carlo import (
    delta_calculation,
    sample_generation,
)

__all__ = [
    "delta_calculation",
    "sample_generation",
]

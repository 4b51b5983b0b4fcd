"""The parts of Monte Carlo accounting: privacy losses, deltas, and the delta you may report.

`bevel.accounting.epsilon` does all of this for the samplers of bevel, with bounds that hold for
every epsilon at once. Use these functions to write your own calibration.
"""

from bevel.experimental.monte_carlo import delta_calculation, sample_generation

__all__ = ["delta_calculation", "sample_generation"]

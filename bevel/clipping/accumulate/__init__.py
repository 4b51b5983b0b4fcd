"""From norms to coefficients to the clipped sum over the batch."""

"""What an earlier compiler costs in memory."""

import jax

# That of jax 0.10 copies values which later ones update in place.
COPIES = 1.7 if jax.__version_info__ < (0, 11) else 1.0

"""Traces of secrets, noise or raw values in the half of a run folder that anyone may see.

It needs both halves of the folder, so only the owner can look. What a run releases contains the
noise that was added to the sums, which protects them. Noise by itself is another matter: whoever
has it can subtract it. These traces are looked for in every file under `released/`:

| trace                                                      | where           | module          |
| ---------------------------------------------------------- | --------------- | --------------- |
| noise buffers, also scaled, shifted, rounded or added up   | arrays          | `noise_traces`  |
| norm, sum, mean or standard deviation of the noise buffers | numbers         | `number_traces` |
| values of `private/raw.jsonl`                              | numbers         | `number_traces` |
| secret bits of the run, as bytes, text or derived seed     | bytes of files  | here            |
| canaries that are easier to see than is promised           | arrays          | `canary_traces` |

Canaries are only looked for by `audit`, which knows them. Runs with independent noise keep no noise
to compare with, so there the canaries have to find noise that is missing.

An empty result proves little: a trace may be hidden by any change that is not linear. An honest run
has a trace by chance with a probability of at most about 1 in 500.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from bevel.auditing.noise_traces import noise_traces
from bevel.auditing.number_traces import number_traces
from bevel.auditing.released_files import Trace, files, shown
from bevel.errors import FixArgumentsError
from bevel.training.folder import PRIVATE, RELEASED, SECRETS
from bevel.training.secrets import read_secrets


def released_traces(folder: str | os.PathLike[str]) -> tuple[Trace, ...]:
    """Looks for traces of noise, raw values and secrets in everything that a run has released.

    Args:
      folder: the folder of a run, with both halves.
    """
    root = Path(folder)
    for half in (RELEASED, PRIVATE):
        if not (root / half).is_dir():
            raise FixArgumentsError(
                f"{root} has no {half}/: pass the folder of a run with both halves, because traces "
                "of private values can only be found by those who have them."
            )
    return (*_secret_traces(root), *noise_traces(root), *number_traces(root))


def _secret_traces(root: Path) -> Iterator[Trace]:
    if not (root / PRIVATE / SECRETS).exists():
        return
    secrets = read_secrets(root / PRIVATE / SECRETS)
    needles = {
        "the secret bits": secrets.root,
        "the secret bits, as text": secrets.root.hex().encode(),
        "the seed of the batches": str(secrets.sampling_seed).encode(),
    }
    for path in files(root / RELEASED):
        content = path.read_bytes()
        for what, needle in needles.items():
            if needle in content:
                at = f"byte {content.index(needle)}"
                yield Trace(shown(path, root), at, f"{what} of the run")

"""Puts errors of the library into the words of the command line.

The library names its arguments, classes and calls. A user of the command line knows the options,
the keys of a config and the names of mechanisms and samplers.
"""

import re

# Arguments of the library whose options have other names.
FIELDS = {
    "expected_batch_size": "batch_size",
    "iterations": "steps",
    "l2_clip_norm": "clip_norm",
    "target_quantile": "adapt_clip_norm_to",
    "neighboring_relation": "relation",
    "num_bands": "bands",
    "num_examples": "examples",
    "max_buffers": "buffers",
    "include_raw": "--include-raw",
    "FixedBatchSampling": "sampling fixed",
    "BallsInBinsSampling": "sampling balls_in_bins",
    "RandomAllocationSampling": "sampling random_allocation",
    "CyclicPoissonSampling": "sampling cyclic_poisson",
    "BMinSepSampling": "sampling min_sep",
    "NonPrivateConfig": "mechanism 'none'",
}
# What to write in Python, as a regular expression, and what to write on the command line instead.
ADVICE = {
    r"publish_baseline=True": "--publish-baseline",
    r"include_raw=True": "--include-raw",
    r"pass baseline=\.\.\.": "pass --baseline",
    r"RunOptions\(ledger=(['\"])(.*?)\1\)": r"--run.ledger=\2",
    r"RunOptions\(accept=\[.*?\]\), on the command line ": "",
    r"another name with RunOptions\(name=\.\.\.\)": "a folder of another name as --run.folder",
    r"names in `settings`": "keys of the config, such as optimizer.learning_rate",
    r"dp_accounting\.NeighboringRelation\.\{(.*?)\}, or its name": r"\1",
    r"Pass the axes with batch_axes=\.": "Use one of these names in [mesh] axes.",
    r"write this before anything uses JAX: jax\.config\.update\('jax_num_cpu_devices', (\d+)\)": (
        r"set cpu_devices of [mesh] to \1"
    ),
    r' or \{"data": 4, "model": 2\}': "",
    r"write \w+\(axis=\.\.\.\), or create the mesh with (\w+=1)": (
        r"use other rules of [mesh], or add \1 to its axes"
    ),
    # Fields of the plan that follow from the keys of the config, which are listed too.
    r"; plan\.(?:mechanism|clip|unit)\.[^;]*?(?=; |\. )": "",
    r"plan\.(?:mechanism|clip|unit)\.[^;]*; ": "",
    r"iterations / expected_participations": "num_examples / expected_batch_size",
}
# Names in quotes, paths and dotted names are what the user wrote.
_FIELD = re.compile(rf"(?<![\w./'\"-])({'|'.join(FIELDS)})(?![\w/'\"-]|\.\w)")


def in_cli_words(message: str) -> str:
    """Replaces the Python names in an error of the library by the names that the command uses."""
    for call, option in ADVICE.items():
        message = re.sub(call, option, message)
    message = _FIELD.sub(lambda match: FIELDS[match[1]], message)
    return re.sub(r"^(\w+)=", r"\1 is ", message)

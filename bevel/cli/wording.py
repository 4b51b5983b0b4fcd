"""Puts errors of the library into the words of the command line.

The library names its arguments, classes and calls. A user of the command line knows the options,
the keys of a config and the names of mechanisms and samplers.
"""

import errno
import os
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
    "examples_per_user_per_batch": "examples_per_user",
    "include_raw": "--include-raw",
    "FixedBatchSampling": "sampling fixed",
    "BallsInBinsSampling": "sampling balls_in_bins",
    "RandomAllocationSampling": "sampling random_allocation",
    "CyclicPoissonSampling": "sampling cyclic_poisson",
    "BMinSepSampling": "sampling min_sep",
    "NonPrivateConfig": "mechanism 'none'",
}
_OF_PLAN = r"(?:(?:mechanism|clip|unit)\.|expected_batch_size )"
# What to write in Python, as a regular expression, and what to write on the command line instead.
ADVICE = {
    r"publish_baseline=True": "--publish-baseline",
    r"include_raw=True": "--include-raw",
    r"pass baseline=\.\.\.": "pass --baseline",
    r": ledger=\.\.\.": ": --ledger FILE.",
    r"Pass another output\b": "Pass another folder with --output",
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
    rf"; plan\.{_OF_PLAN}[^;]*?(?=; |\. )": "",
    rf"plan\.{_OF_PLAN}[^;]*; ": "",
    r"\b(data|model|plan|optimizer|mesh)\.(\w+) ([^;]*?) -> ([^;]*?)(?=; |\. |\.?$)": (
        r"[\1] \2: \3 in the run, \4 in the config"
    ),
    r" \(keep_batch_dim=True\)": "",
    r" Bind Python values that control the function with functools\.partial\.": "",
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


def os_error_in_words(error: OSError) -> str:
    """What is wrong with a file or folder, and what to do about it."""
    path = error.filename
    words = _OS_ERRORS.get(error.errno or 0)
    if path is None and error.errno == errno.ENOSPC:
        return "the output cannot be written, because the disk is full: free space and start again."
    if path is None or words is None:
        return f"{path}: {error.strerror}." if path and error.strerror else str(error)
    return words.format(path=os.fsdecode(path) if isinstance(path, str | bytes) else path)


_OS_ERRORS = {
    errno.ENOENT: "there is no file or folder {path}: check the path.",
    errno.EACCES: "{path}: permission denied. Choose another path, or change its permissions.",
    errno.EPERM: "{path}: permission denied. Choose another path, or change its permissions.",
    errno.EROFS: "{path} is on a file system that is read-only: choose another path.",
    errno.EISDIR: "{path} is a folder: pass the path of a file.",
    errno.ENOTDIR: "{path}: a part of this path is a file, not a folder. Choose another path.",
    errno.EEXIST: "{path} exists and is not a folder: choose another path, or move it away.",
    errno.ENOSPC: "{path} cannot be written, because the disk is full: free space and start again.",
}

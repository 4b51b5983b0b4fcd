"""Writes a ledger and kills the writer, again and again: run by test_ledger_survives_kills.py.

python tests/ledger_kills.py PATH ROUNDS. Prints, as JSON, what was seen.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
import types
import warnings
from pathlib import Path

# The package without its __init__, which loads jax: a writer needs none of that.
package = types.ModuleType("bevel")
package.__path__ = [str(Path(__file__).resolve().parents[1] / "bevel")]
sys.modules["bevel"] = package

from bevel.accounting.ledger import Ledger  # noqa: E402
from bevel.accounting.ledger.hash_chain import START, line_of  # noqa: E402
from bevel.accounting.ledger.header import LedgerHeader  # noqa: E402

TERMS = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE"}
EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}
HEADER = line_of(LedgerHeader(**TERMS).entry(), 0, START)[0]
HEAVY = ("jax", "dp_accounting", "scipy", "optax")


def write_until_killed(path, acknowledge, in_pieces):
    whole_write = os.write
    if in_pieces:  # so that a kill can come between any two bytes

        def write(descriptor, data):
            time.sleep(1e-5)
            return whole_write(descriptor, data[:3])

        os.write = write
    with warnings.catch_warnings(), Ledger.open(path, **TERMS, anchor=f"{path}.anchor") as ledger:
        warnings.simplefilter("ignore")
        run = ledger.run("run", plan="plan", key="0" * 64)
        while True:
            step = run.charged_until
            run.charge(step, step + 1, EVENT)
            whole_write(acknowledge, b"%d\n" % step)


def killed_writer(path, seconds, in_pieces):
    """The steps that a writer acknowledged until it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            warnings.simplefilter("ignore")
            write_until_killed(path, writing, in_pieces)
        finally:
            os._exit(1)  # reached only by an error: it prints nothing but is seen
    os.close(writing)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    with os.fdopen(reading) as answers:
        return [int(line) for line in answers]


def whole_entries(data):
    """What lines say, and what the rest says if only the end of its line is missing."""
    *lines, rest = data.split(b"\n")
    entries = [json.loads(line)["entry"] for line in lines]
    with contextlib.suppress(ValueError):
        entries.append(json.loads(rest)["entry"])
    return entries


def killed_beginnings(path, rounds):
    """How often a writer that was killed while it began left no ledger, and one."""
    moments, seen = random.Random(7), {"none": 0, "begun": 0}
    for number in range(rounds):
        place = f"{path}-{number}"
        killed_writer(place, moments.uniform(0.0, 0.04), in_pieces=True)
        begun = os.path.exists(place)
        seen["begun" if begun else "none"] += 1
        assert not begun or Path(place).read_bytes().startswith(HEADER)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Ledger.open(place, **TERMS, anchor=f"{place}.anchor").close()
        assert Path(place).read_bytes().startswith(HEADER)
    return seen


def main(path, rounds):
    moments = random.Random(5)
    seen = {"torn": 0, "unacknowledged": 0, "acknowledged": 0, "silent": 0}
    released = 0
    for number in range(rounds):
        done = killed_writer(path, moments.uniform(0.0, 0.06), in_pieces=number % 2 == 1)
        data = Path(path).read_bytes() if os.path.exists(path) else b""
        entries = whole_entries(data)
        assert bool(entries) == os.path.exists(path), "a ledger is begun whole or not at all"
        steps = [(entry["first"], entry["stop"]) for entry in entries[1:]]
        assert steps == [(k, k + 1) for k in range(len(steps))], steps
        if done:
            assert done == list(range(released, released + len(done))), (released, done)
            released += len(done)
        # Everything released is there, and at most the one charge in flight is there besides.
        assert released <= len(steps) <= released + 1, (released, len(steps))
        seen["torn"] += data[-1:] not in (b"", b"\n")
        seen["unacknowledged"] += len(steps) > released
        seen["acknowledged"] += len(done)
        seen["silent"] += not done
        released = len(steps)  # the next writer goes on from here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Ledger.open(path, **TERMS, anchor=f"{path}.anchor") as ledger:
            seen["charged"] = ledger.run("run", plan="plan", key="0" * 64).charged_until
    seen["released"] = released
    seen["beginnings"] = killed_beginnings(path, rounds // 4)
    seen["heavy"] = sorted(set(HEAVY) & set(sys.modules))
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

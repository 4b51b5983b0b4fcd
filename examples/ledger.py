"""Charge a ledger before every release: a run, a crash, a second run, and a budget.

python examples/ledger.py
"""

import secrets
import tempfile
import warnings
from pathlib import Path

from bevel.accounting import Budget, Ledger, dpsgd_event, key_commitment, new_salt
from bevel.errors import StopRunError

path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
terms = {
    "unit": "example",
    "relation": "ADD_OR_REMOVE_ONE",
    "budget": Budget(epsilon=1.5, delta=1e-5),
}
step_event = dpsgd_event(1.0, 1, sampling_prob=0.01)


def commitment():
    # Keep the key and its salt with the run, in a file that only its owner can read.
    return key_commitment(secrets.token_bytes(32), new_salt())


first_key = commitment()
with Ledger.open(path, **terms) as ledger:
    run = ledger.run("first", plan="plan-1", key=first_key)
    for step in range(5):
        # ... select, clip, add noise ...
        run.charge(step, step + 1, step_event)
        # Only now may anything computed from this step leave the trainer.
    head = ledger.head  # store it with every checkpoint

with path.open("ab") as file:
    file.write(b'{"entry":{"attempt":0,"ev')  # as if the machine crashed while writing

with warnings.catch_warnings(record=True) as notices:
    warnings.simplefilter("always")
    ledger = Ledger.open(path, **terms)
print("notice:", str(notices[0].message).removeprefix(f"{path} "), "\n")

with ledger:
    run = ledger.run("first", plan="plan-1", key=first_key, checkpoint_step=5, checkpoint_head=head)
    run.charge(5, 300, dpsgd_event(1.0, 295, sampling_prob=0.01))
    run.charge(250, 300, dpsgd_event(1.0, 50, sampling_prob=0.01), attempt=1)  # with fresh noise
    print(ledger.spent().describe(), "\n")
    second = ledger.run("second", plan="plan-2", key=commitment())
    try:
        second.charge(0, 2_000, dpsgd_event(1.0, 2_000, sampling_prob=0.01))
    except StopRunError as error:
        print("stopped:", error)

"""Records what was spent on a data set, on disk before anything is released.

Writing a ledger does not import jax or dp-accounting. Computing what was spent, and enforcing a
budget, imports dp-accounting on first use.
"""

from bevel.accounting.ledger.commitment import key_commitment, new_salt
from bevel.accounting.ledger.event_json import event_from_json, event_to_json
from bevel.accounting.ledger.header import Budget
from bevel.accounting.ledger.ledger import Ledger
from bevel.accounting.ledger.ledger_run import LedgerRun

__all__ = [
    "key_commitment",
    "new_salt",
    "event_from_json",
    "event_to_json",
    "Budget",
    "Ledger",
    "LedgerRun",
]

"""What was spent on a data set, on disk before any of it is released.

Writing loads neither jax nor dp-accounting by itself; reading what was spent, and holding a
budget, loads dp-accounting when it is first needed.
"""

from bevel.accounting.ledger.commitment import (
    key_commitment,
    new_salt,
)
from bevel.accounting.ledger.event_json import (
    event_from_json,
    event_to_json,
)
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

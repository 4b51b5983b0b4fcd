from bevel.accounting.ledger.commitment import key_commitment as key_commitment
from bevel.accounting.ledger.commitment import new_salt as new_salt
from bevel.accounting.ledger.event_json import event_from_json as event_from_json
from bevel.accounting.ledger.event_json import event_to_json as event_to_json
from bevel.accounting.ledger.header import Budget as Budget
from bevel.accounting.ledger.ledger import Ledger as Ledger
from bevel.accounting.ledger.ledger_run import LedgerRun as LedgerRun

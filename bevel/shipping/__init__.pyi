from bevel.shipping.exporting import export as export
from bevel.shipping.loading import ShippedModel as ShippedModel
from bevel.shipping.loading import load as load
from bevel.shipping.statement import Statement as Statement
from bevel.shipping.statement import read_statement as read_statement
from bevel.shipping.verification import StatementCheck as StatementCheck
from bevel.shipping.verification import Verification as Verification
from bevel.shipping.verification import verify as verify

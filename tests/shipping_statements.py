"""Statements as a forger would write them."""

import json

from bevel.shipping.statement import parse_statement


def fields_of(folder):
    return json.loads((folder / "privacy.json").read_text())


def rewrite(folder, fields, *, digest=True):
    """Writes a statement as a forger would, who also computes the new digest."""
    path = folder / "privacy.json"
    if digest:
        statement = parse_statement(json.dumps(fields).encode())
        fields = fields | {"digest": statement.computed_digest()}
    path.write_text(json.dumps(fields))
    return path

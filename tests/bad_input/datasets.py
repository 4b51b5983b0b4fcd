"""`bevel.datasets`: the tables of a config, and the description of a data set."""

from bad_input.domains import (
    FLAG,
    Domain,
    either,
    instance,
    integer,
    number,
    one_of,
    optional,
)
from bad_input.rows import row

from bevel import datasets

TEXT = Domain("a string", lambda v: isinstance(v, str) and bool(v))
ID = integer(1, 2**31 - 1)
SPEC = datasets.DataSpec("image", (8, 8, 1), classes=10)


def tuples(of: Domain, least: int = 0) -> Domain:
    def judge(value):
        if not isinstance(value, tuple) or len(value) < least:
            return False
        return False if False in [of.judge(item) for item in value] else None

    return Domain(f"a tuple of {of.name}", judge)


LABELS = ID | tuples(Domain("strings", lambda v: isinstance(v, str)))
COLUMNS = Domain(
    "columns",
    lambda v: (
        isinstance(v, dict)
        and all(isinstance(k, str) and isinstance(x, tuple | list) for k, x in v.items())
    ),
)

ROWS = [
    row(
        "DataTable",
        datasets.DataTable,
        source=(TEXT, "digits"),
        test=(optional(TEXT), None),
        test_fraction=(optional(number(0, 1)), None),
        split_seed=(integer(0, 2**128), 0),
        tune=(FLAG, False),
        kind=(one_of("auto", "image", "tokens", "table"), "auto"),
        x=(optional(TEXT), None),
        y=(optional(TEXT), None),
        x_test=(optional(TEXT), None),
        y_test=(optional(TEXT), None),
        user=(optional(TEXT), None),
        target=(one_of("class", "number", "next token"), "class"),
        classes=(optional(LABELS), None),
        y_range=(tuples(number()), ()),
        drop_missing=(FLAG, False),
        columns=(COLUMNS, {}),
        delimiter=(Domain("a character", lambda v: isinstance(v, str) and len(v) == 1), ","),
        header=(tuples(Domain("strings", lambda v: isinstance(v, str))), ()),
        size=(tuples(integer(1, 2**16)), ()),
        vocabulary=(optional(ID), None),
        padding=(optional(integer(0, 2**31 - 1)), None),
        encoding=(one_of("ids", "bytes"), "ids"),
        length=(optional(ID), None),
        decode=(optional(TEXT), None),
    ),
    row(
        "AugmentationTable",
        datasets.AugmentationTable,
        views=(integer(1, 2**20), 2),
        flip=(FLAG, True),
        crop=(integer(0, 2**16), 1),
    ),
    row(
        "DataSpec",
        datasets.DataSpec,
        kind=(one_of("image", "tokens", "table"), "image"),
        shape=(tuples(integer(0)), (8, 8, 1)),
        dtype=(either(one_of("float32", "int32", "float64", "uint8")), "float32"),
        classes=(optional(ID), 10),
        vocabulary=(optional(ID), None),
        target=(one_of("class", "number", "next token"), "class"),
        padding=(optional(integer(0, 2**31 - 1)), None),
        target_range=(optional(either(tuples(number(), 2))), None),
    ),
    row(
        "augmentation_of",
        datasets.augmentation_of,
        table=(instance(datasets.AugmentationTable), datasets.AugmentationTable()),
        data=(instance(datasets.DataSpec), SPEC),
    ),
]
EXEMPT = {
    "DataSet": "takes sources of records: tests/datasets",
    "data_set": "reads files",
    "declared": "takes any value of a config",
}

"""`bevel.models`: the table of a config."""

from bad_input.datasets import TEXT, tuples
from bad_input.domains import integer, one_of, optional
from bad_input.rows import row

from bevel import models

SIZE = integer(1, 2**24)
ROWS = [
    row(
        "ModelTable",
        models.ModelTable,
        kind=(one_of("auto", "linear", "mlp", "conv", "resnet", "text"), "auto"),
        widths=(optional(tuples(SIZE)), None),
        width=(optional(SIZE), None),
        depth=(optional(integer(0, 2**24)), None),
        module=(optional(TEXT), None),
        dtype=(one_of("float32", "bfloat16"), "float32"),
        init_seed=(integer(0, 2**32 - 1), 0),
    ),
]
EXEMPT = {
    "build": "takes a `ModelTable` and a `DataSpec`, which are checked",
    "Evaluation": "made by `bevel train`",
    "BuiltModel": "made by `build`",
    "Model": "a named tuple of functions",
}

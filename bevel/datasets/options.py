"""The [data] table of a config: where the data is, how to read it, and what is public about it."""

import dataclasses
from typing import Any, Literal

from bevel.checks import finite_number, flag, instance, is_real, one_of, shown, text, whole_number
from bevel.errors import FixArgumentsError

KINDS = ("auto", "image", "tokens", "table")
TARGETS = ("class", "number", "next token")
ENCODINGS = ("ids", "bytes")
_LARGEST, _WHY = 2**31 - 1, "Labels and tokens are int32."


@dataclasses.dataclass(frozen=True)
class DataTable:
    """The data, and what the model may know about it. All values here become public.

    Epsilon covers what the model learns from the records. It does not cover a list of categories or
    a range that was computed from them, so these are declared here. `bevel data FILE` proposes
    them.
    """

    source: str = "digits"
    """'digits', a file (.npz, .npy, .csv, .parquet), a folder, or 'file.py:function'."""
    test: str | None = None
    """The test set, in the format of source, if source does not contain it."""
    test_fraction: float | None = None
    """Instead of a test set: the share of records (or users) that is held out for testing."""
    split_seed: int = 0
    """Chooses the records that test_fraction and tune hold out. Not a secret."""
    tune: bool = False
    """Hold out a fifth of the training set and measure accuracy on it, to tune options."""
    kind: Literal["auto", "image", "tokens", "table"] = "auto"
    """What x is. By default, images have two or three axes, and everything else is a table."""
    x: str | None = None
    """Name of the inputs: an array of the file, or a column of text."""
    y: str | None = None
    """Name of the labels: an array or a column."""
    x_test: str | None = None
    """Name of the test inputs in an .npz file or a folder of .npy files."""
    y_test: str | None = None
    """Name of the test labels in an .npz file or a folder of .npy files."""
    user: str | None = None
    """Name of the user ids: an array or a column. Users are then protected, not examples."""
    target: Literal["class", "number", "next token"] = "class"
    """What the model predicts."""
    classes: int | tuple[str, ...] | None = None
    """Number of classes, or the list of labels in the order of their class numbers."""
    y_range: tuple[float, ...] = ()
    """For target 'number': lowest and highest value. Others are clipped to them."""
    drop_missing: bool = False
    """Leave out records without a label. Otherwise they are an error."""
    columns: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Columns of a table: [low, high] for numbers and dates, or a list of categories."""
    delimiter: str = ","
    """What separates the columns of a .csv file. Tab in a .tsv file."""
    header: tuple[str, ...] = ()
    """Names of the columns of a .csv file whose first line is already a record."""
    size: tuple[int, ...] = ()
    """Folders of images: height, width and channels (1 or 3) that images are resized to."""
    vocabulary: int | None = None
    """Tokens: number of token ids."""
    padding: int | None = None
    """Tokens: the id that fills short sequences, if there is one."""
    encoding: Literal["ids", "bytes"] = "ids"
    """Tokens: x holds token ids, or text whose UTF-8 bytes are the tokens."""
    length: int | None = None
    """Tokens: number of bytes of a text. Longer ones are cut, shorter ones are padded."""
    decode: str | None = None
    """ArrayRecord: 'file.py:function' that turns the bytes of a record into {"x", "y"}."""

    def __post_init__(self) -> None:
        text("source", self.source)
        for name in ("test", "x", "y", "x_test", "y_test", "user", "decode"):
            if getattr(self, name) is not None:
                text(name, getattr(self, name))
        for name, known in [("kind", KINDS), ("target", TARGETS), ("encoding", ENCODINGS)]:
            one_of(name, getattr(self, name), known)
        for name in ("tune", "drop_missing"):
            flag(name, getattr(self, name))
        share = self.test_fraction
        if share is not None and not (is_real(share) and 0 < share < 1):
            raise FixArgumentsError(
                f"test_fraction={shown(share)}: pass a share between 0 and 1, both excluded."
            )
        whole_number("split_seed", self.split_seed, 0, 2**128)
        for name, least in [("vocabulary", 1), ("length", 1), ("padding", 0)]:
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least, _LARGEST, _WHY)
        self._check_lists()

    def _check_lists(self) -> None:
        if self.classes is not None and not isinstance(self.classes, tuple):
            whole_number("classes", self.classes, 1, _LARGEST, _WHY)
        for name in ("classes", "header"):
            for label in getattr(self, name) if isinstance(getattr(self, name), tuple) else ():
                instance(f"a value in {name}", label, str, "a string")
        instance("header", self.header, tuple, "a tuple of names")
        for side in instance("size", self.size, tuple, "height, width and channels"):
            whole_number("a value in size", side, 1, 2**16, _WHY)
        for value in instance("y_range", self.y_range, tuple, "the lowest and highest value"):
            finite_number("a value in y_range", value, "declared by you")
        for name in instance("columns", self.columns, dict, "a dict of columns"):
            instance("a name in columns", name, str, "a string")
            hint = "[low, high], or a list of categories"
            instance(f"{name} in columns", self.columns[name], tuple | list, hint)
        instance("delimiter", self.delimiter, str, "one character")
        if len(self.delimiter) != 1:
            raise FixArgumentsError(f"delimiter={shown(self.delimiter)}: pass one character.")

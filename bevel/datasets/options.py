"""The [data] table of a config: where the data is, how to read it, and what is public about it."""

import dataclasses
from typing import Any, Literal


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

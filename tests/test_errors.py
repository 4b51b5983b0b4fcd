"""Every error is a ValueError, and its name says what to do."""

import inspect

import pytest

from bevel import errors

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == "bevel.errors"]


def test_the_errors_are_those_of_the_documentation():
    names = {error.__name__ for error in ALL}
    assert names >= {"BevelError", "FixArgumentsError", "FixLossError", "PadBatchError"}
    assert "MoveCollectiveError" in names


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_a_value_error_and_says_what_it_is_for(error):
    assert issubclass(error, ValueError) and issubclass(error, errors.BevelError)
    assert error.__doc__ and error.__name__.endswith("Error")
    with pytest.raises(ValueError, match="write this instead"):
        raise error("write this instead")


def test_errors_do_not_catch_each_other():
    concrete = [error for error in ALL if error is not errors.BevelError]
    for one in concrete:
        assert [other for other in concrete if issubclass(one, other)] == [one]


def test_errors_are_importable_from_the_package():
    import bevel

    assert bevel.errors is errors

from dataclasses import dataclass
from typing import Literal

import pytest

from cofair.errors import UsageError
from cofair.settings import describe, parse_text, read, setting


@dataclass(frozen=True)
class Example:
    beta: float = setting(10.0, "how far reputations spread", above=0)
    pack: int = setting(8, "neurons a step", minimum=1, maximum=100)
    clip: float | None = setting(None, "largest norm")
    count: Literal["nonzero", "mask"] = setting("nonzero", "who counts")
    widths: tuple[int, ...] = setting((200, 200), "widths", minimum=1)
    fast: bool = setting(True, "hurry")


def test_given_values_are_read_and_the_others_keep_their_defaults():
    made = read(Example, {"beta": 2, "widths": [3, 4], "clip": 1}, "method")
    assert made == Example(beta=2.0, widths=(3, 4), clip=1.0)
    assert isinstance(made.beta, float)
    assert read(Example, {"clip": "none"}, "method").clip is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"betta": 1}, r"Unknown setting 'method.betta': did you mean 'beta'\?"),
        ({"zzzzzz": 1}, r"choose one of beta, pack, clip, count, widths, fast\."),
        ({"beta": "big"}, "method.beta must be a number, but is 'big'"),
        ({"beta": True}, "method.beta must be a number, but is True"),
        ({"beta": 0}, "method.beta must be above 0, but is 0"),
        ({"beta": float("nan")}, "method.beta must be a finite number"),
        ({"beta": float("inf")}, "method.beta must be a finite number"),
        ({"pack": 0}, "method.pack must be at least 1, but is 0"),
        ({"pack": 101}, "method.pack must be at most 100, but is 101"),
        ({"pack": 1.5}, "method.pack must be a whole number, but is 1.5"),
        ({"pack": True}, "method.pack must be a whole number"),
        ({"clip": "big"}, "method.clip must be a number or none"),
        ({"count": "masks"}, r"method.count = 'masks' is not a choice: did you mean 'mask'\?"),
        ({"count": 3}, "method.count must be 'nonzero', 'mask', but is 3"),
        ({"widths": 3}, "method.widths must be a list of whole numbers, but is 3"),
        ({"widths": [10**30]}, "method.widths must be at most 9223372036854775807, but is larger"),
        ({"widths": [3, 0]}, "method.widths must be at least 1, but is 0"),
        ({"widths": [3, "4"]}, "method.widths must be a list of whole numbers"),
        ({"fast": 1}, "method.fast must be true or false, but is 1"),
    ],
)
def test_wrong_values_are_refused_in_a_sentence_that_names_the_key(values, sentence):
    with pytest.raises(UsageError, match=sentence):
        read(Example, values, "method")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.1", 0.1),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("pow", "pow"),
        ('"5"', "5"),
        ("", ""),
        ("1e-3", 1e-3),
    ],
)
def test_values_on_the_command_line_are_toml_or_plain_text(text, value):
    assert parse_text(text) == value


def test_settings_describe_themselves():
    rows = {row.name: row for row in describe(Example)}
    assert (rows["beta"].type, rows["beta"].default, rows["beta"].text) == (
        "a number", 10.0, "how far reputations spread",
    )  # fmt: skip
    assert rows["clip"].type == "a number or none"


def test_choices_of_a_registry_are_looked_up_when_a_value_is_read():
    known = {"one": 1}

    @dataclass(frozen=True)
    class Chosen:
        name: str = setting("one", "a name", choices=known)

    assert read(Chosen, {"name": "one"}, "table") == Chosen("one")
    with pytest.raises(UsageError, match=r"table.name = 'tow' is not a choice: .*'?one'?"):
        read(Chosen, {"name": "tow"}, "table")
    known["two"] = 2
    assert read(Chosen, {"name": "two"}, "table").name == "two"
    assert describe(Chosen)[0].type == "'one', 'two'"
    with pytest.raises(UsageError, match=r"table.name must be 'one', 'two', but is 3"):
        read(Chosen, {"name": 3}, "table")

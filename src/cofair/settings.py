"""Settings as frozen dataclasses that are read strictly: a wrong key, type or range gives an error of one sentence."""

import dataclasses
import numbers
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cofair.errors import UsageError, nearest

T = TypeVar("T")

_LARGEST = 2**63 - 1  # the largest integer of a tensor


@dataclass(frozen=True)
class Bounds:
    """What a setting means and the values it may take."""

    text: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: Collection[str] | None = None


def setting(
    default: Any, text: str, *, minimum: float | None = None, maximum: float | None = None, above: float | None = None,
    choices: Collection[str] | None = None,
) -> Any:  # fmt: skip
    """Declare a field of a settings dataclass: its default, what it means, its range (`above` is exclusive).

    A text may have `choices`, such as the names in a registry, which are looked up when a value is read.
    """
    return dataclasses.field(default=default, metadata={"bounds": Bounds(text, minimum, maximum, above, choices)})


@dataclass(frozen=True)
class SettingDescription:
    """One setting as `cofair methods` and the docs show it."""

    name: str
    type: str
    default: Any
    text: str


def describe(cls: type) -> list[SettingDescription]:
    """List the settings of a dataclass."""
    hints = typing.get_type_hints(cls)
    return [
        SettingDescription(field.name, _type_name(_of_choices(hints[field.name], bounds)), field.default, bounds.text)
        for field in dataclasses.fields(cls)
        if (bounds := field.metadata.get("bounds")) is not None
    ]


def values(settings: Any) -> dict[str, Any]:
    """Return the settings of a settings object by name."""
    return {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if "bounds" in f.metadata}


def read(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """Make a settings object from named values; `where` is the path that errors name, such as "training"."""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if "bounds" in f.metadata}  # type: ignore[arg-type]
    for key in given:
        if key not in fields:
            known = nearest(key, fields) if fields else "there are none."
            raise UsageError(f"Unknown setting '{where}.{key}': {known}")
    return cls(**{
        key: _checked(value, hints[key], fields[key].metadata["bounds"], f"{where}.{key}")
        for key, value in given.items()
    })  # fmt: skip


def typed(cls: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values for some fields of any dataclass as those fields' types, or refuse them; `where` as in `read`."""
    hints = typing.get_type_hints(cls)
    return {name: _checked(value, hints[name], Bounds(""), f"{where}.{name}") for name, value in given.items()}


def checked(settings: T, where: str) -> T:
    """Return a settings object that was made in Python with every value as its type, or say what is wrong."""
    kind = type(settings)
    read_again = {key: getattr(read(kind, {key: value}, where), key) for key, value in values(settings).items()}
    return dataclasses.replace(settings, **read_again)  # type: ignore[type-var]


def parse_text(text: str) -> Any:
    """Read the value of `--set key=value`: a TOML value or, failing that, plain text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _checked(value: Any, hint: Any, bounds: Bounds, path: str) -> Any:
    hint = _of_choices(hint, bounds)
    options = _options(hint)
    if type(None) in options:
        if value is None or value == "none":
            return None
        options = [option for option in options if option is not type(None)]
    for option in options:
        ok, read_value = _convert(value, option)
        if ok:
            _check_range(read_value, bounds, path)
            return read_value
    if isinstance(value, str) and typing.get_origin(options[0]) is typing.Literal:
        raise UsageError(f"{path} = {value!r} is not a choice: {nearest(value, typing.get_args(options[0]))}")
    raise UsageError(f"{path} must be {_type_name(hint)}, but is {value!r}.")


def _of_choices(hint: Any, bounds: Bounds) -> Any:
    """Return a type, where it is text with choices as one that has only these."""
    return hint if bounds.choices is None else typing.Literal[tuple(bounds.choices)]


def _check_range(value: Any, bounds: Bounds, path: str) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if not (number == number and abs(number) != float("inf")):
            raise UsageError(f"{path} must be a finite number, but is {number}.")
        if isinstance(number, int) and abs(number) > _LARGEST:
            raise UsageError(f"{path} must be at most {_LARGEST}, but is larger.")
        if bounds.minimum is not None and number < bounds.minimum:
            raise UsageError(f"{path} must be at least {bounds.minimum}, but is {number}.")
        if bounds.above is not None and number <= bounds.above:
            raise UsageError(f"{path} must be above {bounds.above}, but is {number}.")
        if bounds.maximum is not None and number > bounds.maximum:
            raise UsageError(f"{path} must be at most {bounds.maximum}, but is {number}.")


def _options(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return list(typing.get_args(hint))
    return [hint]


def _convert(value: Any, hint: Any) -> tuple[bool, Any]:
    """Return whether a value fits a type, and the value as that type (an integer is also a real number)."""
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint), value
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        if not isinstance(value, list | tuple):
            return False, None
        converted = [_convert(item, inner) for item in value]
        return all(ok for ok, _ in converted), tuple(item for _, item in converted)
    if hint is float:
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return number, float(value) if number else None
    if hint is int:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return whole, int(value) if whole else None
    return isinstance(value, hint), value


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    parts = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            parts.append(", ".join(repr(choice) for choice in typing.get_args(option)))
        elif typing.get_origin(option) is tuple:
            lists = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of texts"}
            inner = typing.get_args(option)[0]
            parts.append(lists.get(inner) or f"a list of {_type_name(inner)}")
        else:
            parts.append(names[option])
    return " or ".join(parts)

"""Damage as disks, editors and cheats do it, drawn at random."""

import json
from random import Random
from typing import Any

_LINES = [b"{}", b"[" * 100_000, b"null", b'{"round":1}', b"[[a]]", b"\xff\xfe", b'"', b"=", b""]
_ODD: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "../..", "\x00", [], {},
    [None], [[]], {"": {}}, "9" * 5000, -(2**63),
]  # fmt: skip
_ODD_TOML = [
    "nan", "-inf", "-1", "0", "1e308", "99999999999999999999", "9" * 5000, '""', '"x"', '"../.."', "[]", "{}", "true",
    "1979-05-27", "07:32:00", "[[1], ['a']]", "{a = {b = 1}}", "[" * 3000, "'''", "", '"\\u0000"', "0x_1", "[1, 2",
]  # fmt: skip


def bytes_damaged(good: bytes, chance: Random) -> bytes:
    """Flip, cut, insert and remove bytes, and insert lines, somewhere."""
    raw = bytearray(good)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        # headers are where it hurts
        kind, place = chance.randrange(6), chance.randrange(chance.choice([min(len(raw), 64), len(raw)]) + 1)
        if kind == 0 and place < len(raw):
            raw[place] ^= 1 << chance.randrange(8)
        elif kind == 1 and place < len(raw):
            raw[place] = chance.randrange(256)
        elif kind == 2:
            del raw[place:]
        elif kind == 3:
            raw[place:place] = chance.randbytes(chance.randrange(1, 20))
        elif kind == 4:
            del raw[place : place + chance.randrange(1, 50)]
        else:
            lines = bytes(raw).split(b"\n")
            lines.insert(chance.randrange(len(lines)), chance.choice([*lines, *_LINES]))
            raw = bytearray(b"\n".join(lines))
        if not raw:
            break
    return bytes(raw)


def json_damaged(value: Any, chance: Random) -> Any:
    """Return a value with something else, less or more in one place, anywhere in it."""
    value = json.loads(json.dumps(value))
    places = list(_places(value))
    if not places:
        return chance.choice(_ODD)
    holder, key = chance.choice(places)
    kind = chance.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, chance.choice(_ODD))
    elif kind == 1:
        holder[f"{key}x"] = holder.pop(key)
    else:
        other, where = chance.choice(places)
        copied = json.loads(json.dumps(other[where]))
        holder[key] = chance.choice([*_ODD, copied]) if kind == 2 else chance.choice(_ODD)
    return value


def toml_damaged(text: str, chance: Random) -> str:
    """Give a setting an odd value, write it twice, drop it, or put it into another table."""
    lines = text.split("\n")
    k = chance.randrange(len(lines))
    kind = chance.randrange(5)
    if kind == 0:
        del lines[k]
    elif kind == 1:
        lines.insert(chance.randrange(len(lines)), lines[k])
    elif kind == 2:
        lines[k] = lines[k][::-1]
    else:
        settings = [i for i, line in enumerate(lines) if "=" in line] or [k]
        k = chance.choice(settings)
        lines[k] = f"{lines[k].partition('=')[0]}= {chance.choice(_ODD_TOML)}"
    return "\n".join(lines)


def _places(value: Any) -> Any:
    """Yield every place in nested lists and dictionaries."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])

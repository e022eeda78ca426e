"""A few bytes on the wire stay a few bytes in memory."""

import hashlib

import numpy as np
import pytest
from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from cofair.flower import inflation
from cofair.flower.messages import array_record


def contents(array):
    return {key: one.deflate() for key, one in get_all_nested_objects(array).items()}


def test_an_array_within_its_bounds_is_unpacked():
    array = array_record({"values": np.arange(1000.0)})["values"]
    with inflation.at_most(8000):
        again = inflate_object_from_contents(array.object_id, contents(array))
    assert isinstance(again, Array)
    assert again.data == array.data


@pytest.mark.parametrize("times", [2, 250_000])
def test_a_piece_that_is_named_many_times_is_counted_many_times(times):
    array = array_record({"values": np.zeros(1000)})["values"]
    known = contents(array)
    body = known.pop(array.object_id)
    listed = b"[" + b", ".join([b"0"] * times) + b"]"
    assert body.count(b'"arraychunk_ids": [0]') == 1
    head, _, text = body.partition(b"\x00")
    text = text.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": ' + listed)
    kind, children, _ = head.split(b" ", 2)
    forged = b" ".join([kind, children, str(len(text)).encode()]) + b"\x00" + text
    name = hashlib.sha256(forged).hexdigest()
    with inflation.at_most(8000), pytest.raises(ValueError, match="more bytes than an update"):
        inflate_object_from_contents(name, {**known, name: forged})


def test_many_arrays_share_one_bound():
    record = array_record({str(k): np.full(100, k) for k in range(10)})
    with inflation.at_most(8 * 500), pytest.raises(ValueError, match="more bytes than an update"):
        inflate_object_from_contents(record.object_id, contents(record))

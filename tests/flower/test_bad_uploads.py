"""Uploads that cannot be used are refused with a reason; the round goes on and the others' results are unchanged."""

import io
import logging

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict

from cofair.flower import messages
from cofair.flower.messages import ARRAYS, CONFIG, RAW
from tests.flower.federations import SIZES, experiment, grid_of, node_of, served, simulated

BAD = 2  # the client that sends nonsense


def values(reply):
    return messages.numbers(reply.content.array_records[ARRAYS]["values"]).copy()


def written(array):
    return messages.array_record({"it": array})["it"]


def with_values(change):
    def tampered(reply, _):
        reply.content.array_records[ARRAYS]["values"] = written(change(values(reply)))
        return reply

    return tampered


def with_config(**changes):
    def tampered(reply, _):
        reply.content[CONFIG] = ConfigRecord({**reply.content.config_records[CONFIG], **changes})
        return reply

    return tampered


def changed(array, index, value):
    array[index] = value
    return array


def lying(reply, _):
    reply.content.array_records[ARRAYS]["values"] = Array("float64", (10**13,), RAW, b"few bytes")
    return reply


def pickled(reply, _):
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    reply.content.array_records[ARRAYS]["values"] = Array("object", (1,), "numpy.ndarray", stream.getvalue())
    return reply


def empty(_, message):
    return Message(RecordDict(), reply_to=message)


def broken_down(_, message):
    return Message(Error(2, "it broke"), reply_to=message)


def extra(reply, _):
    reply.content.array_records[ARRAYS]["weights"] = written(np.zeros(3))
    return reply


def both_codings(reply, _):
    reply.content.array_records[ARRAYS]["bitmap"] = written(np.zeros(3, dtype=np.uint8))
    reply.content.array_records[ARRAYS]["indices"] = written(np.zeros(3, dtype=np.int32))
    return reply


NONSENSE = {
    "not a number": (with_values(lambda v: changed(v, -1, np.nan)), "not finite"),
    "infinite": (with_values(lambda v: changed(v, 0, np.inf)), "not finite"),
    "wrong shape": (with_values(lambda v: v[:, None]), "shape"),
    "too short": (with_values(lambda v: v[:-1]), "values for"),
    "wrong type": (with_values(lambda v: v.astype(np.float32)), "type float32"),
    "integers": (with_values(lambda v: v.astype(np.int64)), "type int64"),
    "too large": (with_values(lambda v: np.concatenate([v, np.zeros(200)])), "too large"),
    "a size that lies": (lying, "shape"),
    "a pickle": (pickled, "not written as plain numbers"),
    "stale": (with_config(round=1), "stale"),
    "another phase": (with_config(phase="personalise"), "stale"),
    "another version": (with_config(version="x"), "stale"),
    "another model": (with_config(model="0123456789abcdef"), "another model"),
    "nothing": (empty, "no settings"),
    "too many arrays": (extra, "nobody asked"),
    "two codings": (both_codings, "too many|too large|bitmap"),
    "failed": (with_config(status="failed"), "its training failed"),
}


def tampering(grid, tamper, since=2):
    """Let the bad client's answers be tampered with from a round on."""
    node = node_of(grid, BAD)
    honest = node.app

    def app(message, context):
        reply = honest(message, context)
        asked = messages.config_of(message)
        if message.metadata.message_type == "train" and asked["round"] >= since:
            return tamper(reply, message)
        return reply

    node.app = app
    return grid


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_refused_and_the_others_are_as_if_its_sender_were_absent(case, caplog):
    tamper, reason = NONSENSE[case]
    chosen = experiment("cgsv", last=3)
    with caplog.at_level(logging.WARNING, logger="flwr.cofair"):
        logging.getLogger("flwr").propagate = True
        result = served(chosen, tampering(grid_of(chosen), tamper))
    records, _ = simulated(chosen, present=lambda t, i: i != BAD or t < 2)
    for one, other in zip(result.history, records, strict=True):
        assert one.accuracies == pytest.approx(other.accuracies)
        assert one.reputation == pytest.approx(other.reputation)
        if one.round >= 2:
            assert one.refused is not None
            assert list(one.refused) == [str(BAD)]
            assert any(part in one.refused[str(BAD)] for part in reason.split("|"))
    assert any("client '2' is refused" in line for line in caplog.messages)


def test_an_answer_that_is_an_error_of_the_app_counts_as_none():
    chosen = experiment("fedavg", last=3)
    result = served(chosen, tampering(grid_of(chosen), broken_down))
    records, _ = simulated(chosen, present=lambda t, i: i != BAD or t < 2)
    assert [r.accuracies for r in result.history] == [r.accuracies for r in records]


@pytest.mark.parametrize("case", ["not a number", "another model", "nothing"])
def test_who_sends_nonsense_when_it_trains_alone_brings_what_the_first_model_can_do(case):
    chosen = experiment("fedrac", last=2)
    result = served(chosen, tampering(grid_of(chosen), NONSENSE[case][0], since=1))
    honest = served(chosen, grid_of(chosen))
    assert len(result.contributions) == len(SIZES)
    others = [i for i in range(len(SIZES)) if i != BAD]
    assert [result.contributions[i] for i in others] == pytest.approx([honest.contributions[i] for i in others])


@pytest.mark.parametrize("said", ["\x1b[31mred\x1b[0m", "two\nlines", "\u202eleft", "\x00\x07", "x" * 10_000])
def test_nothing_that_a_participant_says_reaches_a_terminal_as_it_is(said, caplog):
    chosen = experiment("cgsv", last=2)
    refusing = with_config(status="refused", reason=said)
    with caplog.at_level(logging.WARNING, logger="flwr.cofair"):
        logging.getLogger("flwr").propagate = True
        result = served(chosen, tampering(grid_of(chosen), refusing))
    reason = result.history[-1].refused[str(BAD)]
    assert reason.isprintable()
    assert len(reason) <= 200
    assert all(line.isprintable() for line in caplog.messages)


def test_what_is_no_name_of_an_array_is_told_shortly(caplog):
    def strange(reply, _):
        reply.content.array_records[ARRAYS]["\x1b]0;" + "x" * 1000] = written(np.zeros(3))
        return reply

    chosen = experiment("cgsv", last=2)
    reason = served(chosen, tampering(grid_of(chosen), strange)).history[-1].refused[str(BAD)]
    assert reason.isprintable()
    assert len(reason) < 120

import hashlib
import json
import random

import pytest
import torch
from typer.testing import CliRunner

import cofair
from cofair.cli.main import app
from cofair.config.experiment import Experiment
from cofair.engine.protocol import Delivered
from cofair.errors import RunError, UsageError
from cofair.models import build
from cofair.storage.audit import client_lines
from cofair.storage.folder import AppendOnly
from cofair.storage.ledger import FIRST, Ledger, digests, read, verified_entries
from tests.storage.test_resume import carried_out, experiment_of, small_federation


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "run"
    settings = {"rounds": 12, "steps": 1, "lr": 0.1, "contribution": {"epochs": 1}, "out": path}
    result = cofair.run(lambda: build("mlp", (6,), 3, hidden=(8,)), small_federation(), "fedsac", **settings)
    return path, result


def changed(folder, tmp_path, change):
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(f"{line}\n" for line in change(lines)))
    return path


def test_an_entry_says_who_brought_what_took_part_and_was_handed_what(run_folder):
    path, result = run_folder
    entries = verified_entries(path / "ledger.jsonl")
    assert [entry["round"] for entry in entries] == [0, *[record.round for record in result.history]]
    start, last = entries[0], entries[-1]
    assert start["previous"] == FIRST
    assert start["version"] == cofair.__version__
    assert start["clients"] == list(result.names)
    assert start["contributions"] == last["contributions"] == list(result.contributions)
    assert last["reputation"] == result.history[-1].reputation
    assert last["accuracies"] == result.history[-1].accuracies
    assert max(last["neurons"]) == 8
    assert last["took_part"] == [1, 1, 1, 1]
    assert entries[1]["took_part"] == [entries[1]["round"]] * 4
    assert last["refused"] == []
    assert json.loads((path / "summary.json").read_text())["ledger"] == last["hash"]


def test_a_client_can_hash_its_own_reward_and_find_it_in_the_ledger(run_folder):
    path, result = run_folder
    last = verified_entries(path / "ledger.jsonl")[-1]
    layout = [name for name, _ in result.rewards[0].named_parameters()]
    for i, module in enumerate(result.rewards):
        parameters = dict(module.named_parameters())
        row = torch.cat([parameters[name].detach().reshape(-1) for name in layout]) + 0.0
        held = (parameters[layout[1]] != 0).to(torch.uint8)  # a hidden unit that was left out has no bias
        if int(held.sum()) == last["neurons"][i]:
            own = hashlib.sha256(row.numpy().tobytes() + held.numpy().tobytes()).hexdigest()
            assert own == last["rewards"][i]
    assert len(set(last["rewards"])) > 1


def test_digests_of_shared_and_of_own_models():
    rows = torch.arange(6.0).reshape(2, 3)
    assert digests(Delivered(rows[0]), None, 2) == [digests(Delivered(rows), None, 2)[0]] * 2
    assert digests(Delivered(rows), None, 2)[1] == hashlib.sha256(rows[1].numpy().tobytes()).hexdigest()
    assert digests(Delivered(-0.0 * rows), None, 2) == digests(Delivered(0 * rows), None, 2)


def test_hashes_are_of_canonical_json_and_chained(tmp_path):
    ledger = Ledger(AppendOnly(tmp_path / "ledger.jsonl"))
    ledger.add({"round": 0, "b": [0.1], "a": "ü"})
    ledger.add({"round": 1})
    first, second = (json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines())
    text = '{"a":"\\u00fc","b":[0.1],"entry":0,"previous":"' + FIRST + '","round":0}'
    assert first["hash"] == second["previous"] == hashlib.sha256(text.encode()).hexdigest()
    assert ledger.head == second["hash"]


ALTERED = "was altered"


@pytest.mark.parametrize(
    ("change", "bad", "sentence"),
    [
        (lambda lines: [lines[0], lines[1].replace('"round":', '"round": '), *lines[2:]], 1, ALTERED),
        (lambda lines: [*lines[:3], lines[3].replace('"took_part":[1', '"took_part":[0'), *lines[4:]], 3, ALTERED),
        (lambda lines: lines[:2] + lines[3:], 2, "removed"),
        (lambda lines: lines[1:], 0, "removed"),
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], 4, "inserted"),
        (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], 4, "reordered"),
        (lambda lines: [*lines[:2], "", *lines[2:]], 2, ALTERED),
        (lambda lines: [*lines[:2], "[]", *lines[3:]], 2, ALTERED),
        (lambda lines: ["{}", *lines[1:]], 0, ALTERED),
    ],
)
def test_the_first_bad_entry_is_named(run_folder, tmp_path, change, bad, sentence):
    path = changed(run_folder[0], tmp_path, change)
    with pytest.raises(RunError, match=rf"Entry {bad} of the ledger .*{sentence}"):
        verified_entries(path)
    assert len(read(path).entries) == bad


def rehashed(lines, k, **changes):
    """What a cheat would do: change an entry and make its own hash right again."""
    entry = json.loads(lines[k]) | changes
    entry.pop("hash")
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    entry["hash"] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(entry, sort_keys=True, separators=(",", ":"))


def test_an_entry_with_a_hash_made_right_breaks_the_chain_after_it(run_folder, tmp_path):
    path = changed(run_folder[0], tmp_path, lambda lines: [*lines[:2], rehashed(lines, 2, neurons=[8] * 4), *lines[3:]])
    with pytest.raises(RunError, match=r"Entry 3 of the ledger .* one of the two was replaced"):
        verified_entries(path)


def test_a_ledger_rewritten_to_its_end_is_found_by_anyone_who_knows_a_head(run_folder, tmp_path):
    known = verified_entries(run_folder[0] / "ledger.jsonl")

    def rewrite(lines):
        written = lines[:2]
        for k in range(2, len(lines)):
            changes = {"neurons": [8] * 4} if k == 2 else {}
            written.append(rehashed(lines, k, previous=json.loads(written[-1])["hash"], **changes))
        return written

    path = changed(run_folder[0], tmp_path, rewrite)
    assert len(verified_entries(path)) == len(known)  # nothing is wrong with it in itself
    verified_entries(path, known[1]["hash"])
    for entry in known[2:]:
        with pytest.raises(RunError, match="cut off or rewritten"):
            verified_entries(path, entry["hash"])


def test_a_ledger_that_was_cut_off_is_found_by_its_head(run_folder, tmp_path):
    known = verified_entries(run_folder[0] / "ledger.jsonl")
    path = changed(run_folder[0], tmp_path, lambda lines: lines[:-2])
    verified_entries(path, known[-3]["hash"].upper())
    with pytest.raises(RunError, match=rf"cut off or rewritten: none of its {len(known) - 2} entries"):
        verified_entries(path, known[-1]["hash"])
    path.write_text("")
    with pytest.raises(RunError, match="no complete entry"):
        verified_entries(path)


def test_a_line_that_was_being_written_does_not_count(run_folder, tmp_path):
    text = (run_folder[0] / "ledger.jsonl").read_text()
    path = tmp_path / "ledger.jsonl"
    for cut in random.Random(0).sample(range(len(text)), 20):
        path.write_text(text[:cut])
        assert len(read(path).entries) == text[:cut].count("\n")


def test_a_client_reads_its_own_lines(run_folder):
    path, result = run_folder
    lines = client_lines(verified_entries(path / "ledger.jsonl"), result.names[2])
    assert [line.accuracy for line in lines] == [record.accuracies[2] for record in result.history]
    assert [line.reputation for line in lines] == [record.reputation[2] for record in result.history]
    with pytest.raises(UsageError, match="no client 'nobody'"):
        client_lines(verified_entries(path / "ledger.jsonl"), "nobody")


def test_who_joined_later_has_lines_from_then_on(run_folder):
    entries = list(verified_entries(run_folder[0] / "ledger.jsonl"))
    joined = {"round": 5, "joined": {"clients": ["late"], "contributions": [0.5]}, "hash": "0"}
    longer = [
        {
            key: [*value, value[0]] if isinstance(value, list) and len(value) == 4 else value
            for key, value in entry.items()
        }
        for entry in entries[3:]
    ]
    lines = client_lines([*entries[:3], joined, *longer], "late")
    assert [line.round for line in lines] == [entry["round"] for entry in entries[3:]]
    assert [line.reward for line in lines] == [entry["rewards"][0] for entry in entries[3:]]


@pytest.mark.parametrize("key", ["contributions", "accuracies", "rewards", "took_part", "refused"])
def test_a_whole_ledger_without_what_a_client_needs_is_a_sentence(run_folder, key):
    entries = [dict(entry) for entry in verified_entries(run_folder[0] / "ledger.jsonl")]
    for wrong in ("x", 5, None, [[]]):
        entries[2][key] = wrong
        with pytest.raises(RunError, match="not written by this version"):
            client_lines(entries, "2")


def test_an_entry_without_a_round_is_named(run_folder, tmp_path):
    path = changed(run_folder[0], tmp_path, lambda lines: [*lines[:-1], rehashed(lines, -1, round="12")])
    with pytest.raises(RunError, match="names no round"):
        verified_entries(path)


@pytest.mark.parametrize("head", ["", "0", "xyz", "0" * 63, "g" * 64])
def test_what_is_no_hash_is_not_taken_for_a_proof(run_folder, head):
    with pytest.raises(UsageError, match="64 hexadecimal digits"):
        verified_entries(run_folder[0] / "ledger.jsonl", head)


def command(*words):
    return CliRunner().invoke(app, ["ledger", *map(str, words)])


def test_the_command_prints_the_head_or_the_fault(run_folder, tmp_path):
    path, _ = run_folder
    head = verified_entries(path / "ledger.jsonl")[-1]["hash"]
    assert command("verify", path, "--head", head).output.rstrip().endswith(head)
    assert command("verify", path.parent).output.rstrip().endswith(head)  # every run in a folder
    shown = command("show", path, "--client", "2").output
    assert head in shown
    assert len(json.loads(command("show", path, "--client", "2", "--json").output)) == 12 - 2
    assert isinstance(command("verify", tmp_path).exception, UsageError)
    assert isinstance(command("verify", path, "--head", "0" * 64).exception, RunError)
    changed(path, tmp_path, lambda lines: lines[:-1])
    (tmp_path / "summary.json").write_text((path / "summary.json").read_text())
    assert "does not end as summary.json says" in str(command("verify", tmp_path).exception)
    (tmp_path / "summary.json").write_text("{}")
    assert "does not name the ledger's head" in str(command("verify", tmp_path).exception)


def test_refusals_stand_in_the_ledger_with_their_reasons(tmp_path):
    experiment = Experiment.from_dict(experiment_of("fedavg").to_dict() | {"attack": {"name": "nan", "clients": 1}})
    carried_out(experiment, tmp_path)
    entries = verified_entries(tmp_path / "ledger.jsonl")
    refused = [item for entry in entries[1:] for item in entry["refused"]]
    assert refused
    assert len({name for _, name, _ in refused}) == 1
    assert all("finite" in why for _, _, why in refused)
    (client,) = {entries[0]["clients"].index(name) for _, name, _ in refused}
    assert all(entry["took_part"][client] == 0 for entry in entries[1:])

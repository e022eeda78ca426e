"""What a run counts, however many trainings wait to be counted together."""

from dataclasses import replace

import pytest
import torch

from cofair.engine.protocol import Rewards, Uploads
from cofair.runs.state import Tally
from cofair.storage.tensor_file import TensorFile, write


def rounds(server, count):
    """Give submodels of random neurons to three clients, the second absent in every third round."""
    random = torch.Generator().manual_seed(0)
    for t in range(1, count + 1):
        masks = torch.rand(3, server.neurons.count, generator=random) < 0.6
        participants = torch.tensor([True, False, True]) if t % 3 == 0 else None
        yield t, Rewards(server.initial, server.work, masks, participants=participants)


def everybody(server):
    return Uploads(torch.zeros(3, server.layout.size), torch.ones(3, dtype=torch.bool), torch.tensor([1, 1, 1]))


@pytest.mark.parametrize("count", [1, 5, 8, 40])
def test_submodels_counted_together_count_as_one_by_one(make_server, count):
    server = make_server([0.2, 0.5, 0.9])
    tally, downloaded, held = Tally.empty(server), torch.zeros(3, dtype=torch.float64), []
    for t, rewards in rounds(server, count):
        tally = tally.after(server, rewards, everybody(server), t)
        there = torch.ones(3, dtype=torch.bool) if rewards.participants is None else rewards.participants
        kept = server.neurons.parameter_mask(rewards.neuron_masks).double().mean(1)
        downloaded += kept * there
        held.append(rewards.neuron_masks[there].double().mean(0))
    counted = tally.counted(server)
    assert torch.allclose(counted.downloaded, downloaded, atol=1e-12)
    assert counted.allocation() == pytest.approx(torch.stack(held).mean(0).tolist(), abs=1e-4)
    assert counted.tested().allocation() is None
    assert torch.equal(counted.tested().downloaded, counted.downloaded)


def test_no_more_than_a_few_trainings_wait(make_server):
    server = make_server([0.2, 0.5, 0.9])
    tally = Tally.empty(server)
    for t, rewards in rounds(server, 100):
        tally = tally.after(server, rewards, everybody(server), t)
        assert len(tally.handed) < 8


def test_newcomers_have_downloaded_nothing_of_what_waits(make_server):
    three, four = make_server([0.2, 0.5, 0.9]), make_server([0.2, 0.5, 0.9, 0.4])
    tally = Tally.empty(three)
    for t, rewards in rounds(three, 2):
        tally = tally.after(three, rewards, everybody(three), t)
    before, after = tally.counted(three), tally.with_newcomers(4).counted(four)
    assert torch.equal(after.downloaded[:3], before.downloaded)
    assert after.downloaded[3] == 0
    assert after.allocation() == before.allocation()


def test_a_download_that_the_method_tells_counts_as_told(make_server):
    server = make_server([0.2, 0.5, 0.9])
    told = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    t, rewards = next(rounds(server, 1))
    tally = Tally.empty(server).after(server, replace(rewards, download=told), everybody(server), t).counted(server)
    assert torch.equal(tally.downloaded, told)
    assert tally.allocation() is not None


def test_what_waits_is_kept_by_a_checkpoint(make_server, tmp_path):
    server = make_server([0.2, 0.5, 0.9])
    tally = Tally.empty(server)
    for t, rewards in rounds(server, 11):  # some counted, some not, with and without participants
        tally = tally.after(server, rewards, everybody(server), t)
    write(tmp_path / "tally", {}, tally)
    again = TensorFile(tmp_path / "tally").value(Tally, torch.device("cpu")).counted(server)
    assert torch.equal(again.downloaded, tally.counted(server).downloaded)
    assert again.allocation() == tally.counted(server).allocation()

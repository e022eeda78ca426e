import pytest
import torch

from cofair.engine.protocol import Uploads
from cofair.errors import RunError
from cofair.rounds.client_status import ClientStatus
from tests.driving import collected
from tests.methods.test_every_method import run


def refused(*clients):
    present = torch.ones(3, dtype=torch.bool)
    present[list(clients)] = False
    return Uploads(
        torch.zeros(3, 2), present, torch.ones(3), refused=dict.fromkeys(clients, "its update is not finite")
    )


def test_refusals_are_counted_and_the_client_refused_most_often_is_named(make_server):
    server, status = make_server([0.5, 0.6, 0.7]), ClientStatus.at_first(torch.tensor([0.5, 0.6, 0.7]))
    for t, clients in enumerate(((1,), (1, 2), ()), start=1):
        status = status.after(refused(*clients), server, t)
    assert status.refusals.tolist() == [0, 2, 1]
    grown = status.with_newcomers(torch.tensor([0.5, 0.6, 0.7, 0.2]))
    assert grown.refusals.tolist() == [0, 2, 1, 0]
    with pytest.raises(RunError, match=r"client '1', 3 times: its update is not finite"):
        status.after(refused(0, 1, 2), server, 4)


def test_refusals_survive_a_checkpoint():
    _, started = run("fedavg", last=4, attack={"name": "nan", "clients": [1]})
    whole = collected(started)
    assert [state.status.refusals.tolist() for state in whole.states] == [[0, t, 0, 0] for t in (1, 2, 3, 4)]
    rest = collected(started, begun=whole.states[1])
    assert rest.states[-1].status.refusals.tolist() == [0, 4, 0, 0]

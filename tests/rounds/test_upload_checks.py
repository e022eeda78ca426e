"""What the server refuses before any method sees it."""

from dataclasses import replace

import pytest
import torch

from cofair.engine.protocol import Rewards, Uploads
from cofair.engine.work import Work
from cofair.errors import RunError
from cofair.rounds import upload_checks


@pytest.fixture
def layout(make_problem):
    return make_problem().layout


def uploads_for(layout, clients=3, **changes):
    updates = torch.full((clients, layout.size), 0.1, dtype=layout.dtype)
    return replace(Uploads(updates, torch.ones(clients, dtype=torch.bool), torch.tensor([10, 100, 70])), **changes)


def handed(layout, **changes):
    return Rewards(torch.zeros(layout.size, dtype=layout.dtype), Work(), **changes)


def test_good_uploads_pass_as_they_are(layout):
    uploads = uploads_for(layout)
    assert upload_checks.admitted(handed(layout), uploads, layout) is uploads


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.nan, upload_checks.NOT_FINITE),
        (torch.inf, upload_checks.NOT_FINITE),
        (-torch.inf, upload_checks.NOT_FINITE),
        (1e5, upload_checks.TOO_LONG),
        (1e200, upload_checks.TOO_LONG),
    ],
)
def test_one_bad_entry_makes_its_client_absent_and_leaves_the_others(layout, value, reason):
    uploads = uploads_for(layout, statistics={"loss_before": torch.tensor([1.0, 2.0, 3.0])})
    uploads.updates[1, 3] = value
    passed = upload_checks.admitted(handed(layout), uploads, layout)
    assert passed.refused == {1: reason}
    assert passed.present.tolist() == [True, False, True]
    assert torch.equal(passed.updates[0], uploads.updates[0])
    assert not passed.updates[1].any()
    assert passed.statistics["loss_before"][1].isnan()


def test_what_is_out_of_proportion_depends_on_the_model(layout):
    uploads = uploads_for(layout)
    uploads.updates[1, 3] = 2e4
    large = Rewards(torch.full((layout.size,), 1.0, dtype=layout.dtype), Work())
    assert upload_checks.admitted(large, uploads, layout) is uploads
    assert set(upload_checks.admitted(handed(layout), uploads, layout).refused) == {1}


def test_an_absent_client_is_not_refused(layout):
    uploads = uploads_for(layout, present=torch.tensor([True, False, True]))
    uploads.updates[1] = torch.nan  # nobody looks at it
    assert not upload_checks.admitted(handed(layout), uploads, layout).refused


def test_who_was_not_asked_is_refused(layout):
    rewards = handed(layout, participants=torch.tensor([True, False, True]))
    assert upload_checks.admitted(rewards, uploads_for(layout), layout).refused == {1: upload_checks.NOT_ASKED}


def test_losses_that_were_asked_for_must_be_there(layout):
    losses = torch.tensor([[1.0, torch.nan], [1.0, 2.0], [1.0, torch.nan]])  # 10 samples: one batch of 64; 70: two
    passed = upload_checks.admitted(
        handed(layout), uploads_for(layout, statistics={"batch_losses_before": losses}), layout
    )
    assert passed.refused == {2: upload_checks.NO_LOSSES}
    assert passed.statistics["batch_losses_before"][0, 0] == 1


def test_an_engine_that_returns_something_else_is_an_error(layout):
    with pytest.raises(RunError, match="engine returned"):
        upload_checks.admitted(handed(layout), uploads_for(layout, updates=torch.zeros(3, 2)), layout)

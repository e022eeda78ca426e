"""What the set-up of a run with other people's computers refuses."""

import pytest

from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.flower.remote_setup import RemoteSetups


def test_weights_counted_at_the_server_are_refused_because_participants_cannot_count_them():
    experiment = Experiment.from_dict({"run": {"class_weights": "balanced"}})
    with pytest.raises(UsageError, match="data that participants do not have: give numbers"):
        RemoteSetups(experiment, None, frozenset(), None, None, None).of([])

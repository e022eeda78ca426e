"""What a run is a run of."""

from cofair.config.experiment import Experiment
from cofair.storage.fingerprint import difference

CHOSEN = Experiment.from_dict({"federation": {"clients": 3}, "training": {"rounds": 2}})


def test_a_federation_that_was_given_is_passed_over_only_where_its_hash_is_compared():
    written = CHOSEN.to_toml(given={"federation"})
    assert difference(written, CHOSEN, ignore_given=True) is None
    assert difference(written, CHOSEN) == "federation.clients is 10 there and 3 here"
    other = Experiment.from_dict({"federation": {"clients": 3}, "training": {"rounds": 9}})
    assert difference(written, other, ignore_given=True) == "training.rounds is 2 there and 9 here"

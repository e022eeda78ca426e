import pytest

from cofair.config.experiment import Experiment
from cofair.errors import UsageError, nearest


@pytest.mark.parametrize(
    ("name", "valid", "meant"),
    [
        ("betta", ["alpha", "beta"], "beta"),
        ("lrr", ["lr", "decay"], "lr"),
        ("pwo", ["uni", "pow"], "pow"),
        ("CUDA", ["auto", "cpu", "cuda"], "cuda"),
        ("gpu", ["auto", "cpu", "cuda"], "cuda"),
        ("learning_rate", ["rounds", "lr"], "lr"),
        ("batchsize", ["batch_size", "lr"], "batch_size"),
        ("batch-size", ["batch_size", "lr"], "batch_size"),
        ("fedac", ["fedavg", "fedsac"], "fedsac"),
        ("fashionmnist", ["mnist", "fashion-mnist"], "fashion-mnist"),
    ],
)
def test_a_misspelling_is_understood(name, valid, meant):
    assert nearest(name, valid) == f"did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("weight_decay", ["lr", "decay", "decay_every"]),
        ("decay_rate", ["lr", "decay", "decay_every"]),
        ("tpu", ["auto", "cpu", "cuda"]),
        ("gpu", ["auto", "cpu"]),
        ("imagenet", ["mnist", "tiny-imagenet"]),
        ("hospital 3", ["hospital 1", "hospital 2"]),
        ("13", ["12", "14"]),
    ],
)
def test_another_thing_is_not_suggested(name, valid):
    assert nearest(name, valid) == f"choose one of {', '.join(valid)}."


def test_a_sentence_does_not_list_a_thousand_names():
    said = nearest("nobody", [f"client {i}" for i in range(1000)])
    assert len(said) < 600
    assert said.endswith("(1000 in all).")


def test_settings_that_do_not_exist_are_not_taken_for_others():
    with pytest.raises(UsageError, match=r"Unknown setting 'training.weight_decay': choose one of rounds, "):
        Experiment.from_dict({"training": {"weight_decay": 0.1}})
    with pytest.raises(UsageError, match=r"run.device = 'gpu' is not a choice: did you mean 'cuda'\?"):
        Experiment.from_dict({"run": {"device": "gpu"}})

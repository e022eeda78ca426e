"""A table of one's own becomes a federation: its columns inputs, its sites clients."""

import gzip

import numpy as np
import pandas as pd
import pytest
import torch

import cofair
from cofair.config.experiment import Experiment
from cofair.data.tables.own_table import held_out
from cofair.errors import UsageError

ROWS = 60


def frame(**changes):
    """Three hospitals with 30, 20 and 10 patients."""
    rng = np.random.default_rng(0)
    columns = {
        "hospital": ["north"] * 30 + ["east"] * 20 + ["old town"] * 10,
        "age": rng.normal(60, 10, ROWS).round(1), "sex": ["f", "m"] * (ROWS // 2),
        "smoker": [True, False, False] * (ROWS // 3), "died": ["no", "yes", "no", "no", "yes"] * (ROWS // 5),
    }  # fmt: skip
    return pd.DataFrame(columns | changes)


def federate(table=None, **changes):
    return cofair.federate(frame() if table is None else table, **({"label": "died", "by": "hospital"} | changes))


def same(one, other):
    parts = ("inputs", "rows", "labels", "sizes")
    alike = all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)
    return alike and one.names == other.names and torch.equal(one.test.x, other.test.x)


def test_sites_are_clients_and_every_row_goes_to_exactly_one_place():
    made = federate()
    assert made.names == ("east", "north", "old town")
    assert made.class_names == ("no", "yes")
    ages = [made.inputs[made.rows, 0], made.test.x[:, 0], made.validation.x[:, 0]]
    assert torch.equal(torch.cat(ages).sort().values, made.inputs[:, 0].sort().values)
    assert (len(made.test), len(made.validation)) in {(11, 4), (12, 4), (11, 5), (12, 5)}
    assert made.encoding.names == ("age", "sex=f", "sex=m", "smoker=False", "smoker=True")
    assert made.input_shape == (5,)


def test_numbers_are_standardised_by_what_trains_and_categories_are_one_of_many():
    made = federate()
    trained = torch.cat([made.client(i).x for i in range(3)])
    assert torch.allclose(trained[:, 0].mean(), torch.tensor(0.0), atol=1e-5)
    assert torch.allclose(trained[:, 0].std(unbiased=False), torch.tensor(1.0), atol=1e-5)
    assert (trained[:, 1] + trained[:, 2] == 1).all()
    assert torch.equal(made.inputs, made.encoding.encode(frame()))


def test_a_seed_decides_who_is_tested_and_nothing_else_does():
    assert same(federate(seed=1), federate(seed=1))
    assert not same(federate(seed=1), federate(seed=2))


def test_every_client_and_class_gives_its_share_and_keeps_a_row():
    owner, label = np.array([0] * 400 + [1] * 100 + [2]), np.array([0, 1] * 250 + [0])
    test, rest = held_out(owner, label, np.arange(501), 0.2, np.random.default_rng(0))
    assert sorted([*test, *rest]) == list(range(501))
    for client, count in ((0, 80), (1, 20)):
        for kind in (0, 1):
            assert abs(int(((owner[test] == client) & (label[test] == kind)).sum()) - count / 2) <= 1
    assert 500 in rest


def test_a_site_may_have_one_class():
    died = frame()["died"].where(frame()["hospital"] != "east", "no")
    made = federate(frame(died=died))
    assert made.class_counts()[0].tolist()[1] == 0
    assert made.classes == 2


def test_without_sites_a_scene_spreads_the_rows():
    made = federate(by=None, leave_out=["hospital"], clients=4, scene="uni")
    assert made.sizes.tolist() == [10] * 4
    assert made.input_shape == (5,)


@pytest.mark.parametrize("labels", [[3, 5], [3.0, 5.0], [False, True], pd.Categorical(["yes", "no"])])
def test_labels_of_any_kind_are_classes_with_names(labels):
    column = [labels[i % 2] for i in range(ROWS)]
    made = federate(frame(died=column))
    assert set(made.labels.tolist()) == {0, 1}
    assert made.class_names == tuple(str(int(v)) if isinstance(v, float) else str(v) for v in sorted(set(column)))


def test_columns_may_be_named_by_numbers_and_spaces_around_a_name_make_no_other_client():
    table = frame(hospital=frame()["hospital"].where(frame()["sex"] == "f", frame()["hospital"] + " "))
    named = federate(table.set_axis(range(5), axis=1), label=4, by=0)
    assert named.names == ("east", "north", "old town")
    assert torch.equal(named.inputs, federate().inputs)


def test_many_numbers_are_no_classes():
    made = federate(frame(died=np.arange(ROWS) / 7))
    assert made.classes is None
    assert made.labels.dtype == torch.float32


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv"])
def test_a_file_gives_what_its_frame_gives(tmp_path, ending):
    path = tmp_path / f"hospitals{ending}"
    text = frame().to_csv(index=False, sep="\t" if ending == ".tsv" else ",")
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    assert same(federate(str(path)), federate())


def test_parquet_is_read_or_the_sentence_says_what_to_install(tmp_path):
    path = tmp_path / "hospitals.parquet"
    try:
        frame().to_parquet(path)
    except ImportError:
        path.write_bytes(b"PAR1")
        with pytest.raises(UsageError, match=r"pip install 'cofair\[parquet\]'"):
            federate(str(path))
    else:
        assert same(federate(str(path)), federate())
        path.write_bytes(b"PAR1")
        with pytest.raises(UsageError, match="cannot be read as Parquet"):
            federate(str(path), seed=1)


def test_a_model_encodes_later_rows_as_it_was_trained():
    encoding = federate().encoding
    later = encoding.encode(pd.DataFrame({"sex": ["m"], "smoker": [True], "age": [60]}))
    assert later[0, 1:].tolist() == [0, 1, 0, 1]
    unknown = encoding.encode(pd.DataFrame({"sex": ["x"], "smoker": [True], "age": [60]}))
    assert unknown[0, 1:3].tolist() == [0, 0]
    with pytest.raises(UsageError, match="the DataFrame has no column 'smoker'"):
        encoding.encode(pd.DataFrame({"sex": ["m"], "age": [60]}))


def test_an_experiment_keeps_only_settings_that_mean_something():
    own = {"data": "hospitals.csv", "label": "died", "by": "hospital"}
    written = Experiment.from_dict({"federation": own}).to_dict()["federation"]
    assert written == own | {"leave_out": [], "test": 0.2, "validation": 0.1}
    assert not {"label", "by", "test"} & set(Experiment.from_dict({}).to_dict()["federation"])
    for wrong in (own | {"clients": 3}, own | {"resize": 8}, {"label": "died"}):
        with pytest.raises(UsageError, match="leave it out"):
            Experiment.from_dict({"federation": wrong})

import pytest

from cofair.errors import UsageError
from cofair.reproduce import approximation, measurements, paper_tables
from cofair.reproduce.paper_numbers import Number, numbers
from cofair.results.record import Record
from cofair.results.result import Outcome


@pytest.mark.parametrize("name", paper_tables.names())
def test_every_cell_of_every_table_has_an_experiment(name):
    table = paper_tables.table(name)
    assert table.cells
    for cell in table.cells:
        experiment = paper_tables.experiment(table.paper, cell, 3)
        assert experiment.run.seed == 3
        assert experiment.federation.clients == cell.clients


def test_published_numbers_are_the_papers():
    found = [
        n for n in numbers("fedsac_table1_fairness") if (n.data, n.scene, n.method) == ("CIFAR10", "POW", "FedSAC")
    ]
    assert found == [Number("fairness_pearson_x100", "CIFAR10", 10, "POW", "FedSAC", 98.80, 0.2)]


def cell(paper_table, data, scene, method):
    return next(
        n for n in paper_tables.table(paper_table).cells if (n.data, n.scene, n.method) == (data, scene, method)
    )


def test_settings_of_data_scene_method_and_override_come_together():
    svhn = paper_tables.experiment("fedsac", cell("fedsac-table1", "SVHN", "DIR(2.0)", "FedSAC"), 0)
    assert (svhn.federation.data, svhn.federation.scene, svhn.federation.alpha) == ("svhn", "dir", 2.0)
    assert (svhn.training.batch_size, svhn.training.steps, svhn.method.beta) == (64, 20, 3)
    assert paper_tables.experiment("fedsac", cell("fedsac-table1", "CIFAR10", "DIR(3.0)", "FedSAC"), 0).method.beta == 5
    cgsv = paper_tables.experiment("fedsac", cell("fedsac-table1", "CIFAR10", "POW", "CGSV"), 0)
    assert cgsv.method.reputation_from == "contributions"


def test_the_step_length_of_a_data_set_reaches_the_methods_that_have_one():
    of = [
        paper_tables.experiment("cgsv", cell("cgsv-table2", "CIFAR10", "POW", m), 0).method
        for m in ("CGSV(beta=1)", "DW")
    ]
    assert [method.gamma for method in of] == [0.15, 0.15]
    assert not hasattr(
        paper_tables.experiment("cgsv", cell("cgsv-table2", "CIFAR10", "POW", "FedAvg"), 0).method, "gamma"
    )


def test_tables_share_the_folders_of_their_runs(tmp_path):
    first, second = (
        measurements.jobs(paper_tables.chosen(paper_tables.table(name), ["cifar10/pow"], ["FedSAC"]), [0], tmp_path, ())
        for name in ("fedsac-table1", "fedsac-table2")
    )
    assert [job.folder for job in first] == [job.folder for job in second]


def test_cells_and_methods_are_chosen_in_any_case():
    whole = paper_tables.table("fedsac-table1")
    some = paper_tables.chosen(whole, ["CIFAR10/pow", "svhn"], ["fedsac", "fedavg"])
    assert len(some.cells) == (1 + 5) * 2
    assert {
        cell.clients for cell in paper_tables.chosen(paper_tables.table("cgsv-table1"), ["mnist/POW/20"]).cells
    } == {20}


@pytest.mark.parametrize(
    ("cells", "methods", "sentence"),
    [(["cifar10/pou"], [], "no cells 'cifar10/pou'.*cifar10/pow"), ([], ["fedsack"], "no method 'fedsack'.*FedSAC")],
)
def test_what_a_table_does_not_have_is_told(cells, methods, sentence):
    with pytest.raises(UsageError, match=sentence):
        paper_tables.chosen(paper_tables.table("fedsac-table1"), cells, methods)


def test_an_unknown_table_is_told():
    with pytest.raises(UsageError, match="fedsac-table1"):
        paper_tables.table("fedsac-tabel1")


def outcome(*rows):
    history = tuple(Record(t, gamma, a, None, None, [1, 1], 1.0, False) for t, (gamma, a) in enumerate(rows, start=1))
    return Outcome("m", 0, ("a", "b"), (1, 1), (0.2, 0.4), history)


def read(metric, run, rule):
    return measurements._read(Number(metric, "CIFAR10", 10, "POW", "agent 2 (beta=1)", 0.0, None), run, rule)


def test_table_7_reads_accuracies_where_fairness_is_above_95():
    run = outcome((94.0, [0.1, 0.9]), (96.0, [0.3, 0.5]), (97.0, [0.2, 0.4]))
    assert read("max_test_accuracy_pct_given_rho>95", run, "best") == pytest.approx(50)
    assert read("min_client_test_accuracy_pct_given_rho>95", run, "best") == pytest.approx(30)
    assert read("max_test_accuracy_pct_given_rho>95", outcome((94.0, [0.1, 0.9])), "best") is None


def test_quantities_are_in_the_papers_units():
    run = outcome((100.0, [0.25, 0.5]))
    assert read("max_test_accuracy_pct", run, "last") == pytest.approx(50)
    assert read("mean_test_accuracy_pct", run, "last") == pytest.approx(37.5)
    assert read("fairness_pearson_x100", run, "best") == pytest.approx(100)
    assert read("rate_alphaBCF", run, "last") == pytest.approx(1.0)


def test_figure_2_of_cgsv_is_one_run_and_reads_its_agents(tmp_path):
    table = paper_tables.table("cgsv-figure2")
    (job,) = measurements.jobs(table, [0], tmp_path, ())
    assert (job.experiment.federation.scene, job.experiment.method.name) == ("noisy", "cgsv")
    first = Record(1, 90.0, [0.3, 0.5], None, [0.4, 0.6], [1.0, 0.5], 1.0, False)
    second = Record(2, 90.0, [0.3, 0.5], None, [0.2, 0.8], [1.0, 0.25], 1.0, True)
    run = Outcome("cgsv", 0, ("a", "b"), (1, 1), (0.2, 0.4), (first, second))
    assert read("mean_psi", run, "last") == pytest.approx(0.7)
    assert read("mean_reward_sparsity_pct", run, "last") == pytest.approx(50)  # half a model in one of two rounds


@pytest.mark.parametrize("name", ["fedave-table2", "cgsv-table2"])
def test_cffl_limits_rewards_by_classes_where_clients_differ_in_them(name):
    own = paper_tables.table(name)
    shares = {
        cell.scene: paper_tables.experiment(own.paper, cell, 0).method.share
        for cell in own.cells
        if cell.method == "CFFL"
    }
    assert shares.pop("CLA") == "classes"
    assert set(shares.values()) == {"size"}


def test_figure_1_of_cgsv_has_the_clean_errors():
    found = {
        (line.published.clients, line.published.metric[:2], "psi" in line.published.method): line.measured[
            "measured"
        ].mean
        for line in approximation.lines(range(4))
        if line.published.scene == "D=1000"
    }
    for clients in range(5, 11):
        assert 0.006 < found[clients, "l1", True] < 0.014
    for clients in range(6, 11):
        assert 0.02 < found[clients, "l1", False] < 0.08


def test_cells_that_reach_the_published_mean_less_its_deviation_are_counted_by_method():
    def line(method, mean, std, value, metric="fairness_pearson_x100"):
        own = Number(metric, "CIFAR10", 10, "POW", method, mean, std)
        return measurements.Line(own, {"best": None if value is None else measurements.Value(value, None, 1)})

    lines = [
        line("a", 90.0, 1.0, 89.0),  # just reached
        line("a", 90.0, 1.0, 88.9),
        line("a", 90.0, 1.0, None),  # not finished
        line("b", 90.0, None, 95.0),  # nothing to compare with
        line("c", 90.0, 0.5, 99.0),
        line("d", 0.01, 0.001, 0.05, "l1diff_vs_exact"),  # an error: more of it is nothing to count
    ]
    assert measurements.reached(lines, "best") == {"a": (1, 2), "c": (1, 1)}

"""The page as a file: what is in it, what stays out of it, how large it gets."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import cofair
from cofair.errors import UsageError
from cofair.report import interactive, page
from cofair.report.markup import data, element
from cofair.report.reported_runs import read_methods
from tests.report.folders import NASTY, write_folder
from tests.report.made import made_method, made_run

LIMIT = 8e6  # bytes


class Parsed(HTMLParser):
    """Tags and the text outside scripts and styles."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.text, self.scripts, self._raw = [], [], "", [], None
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self._raw = tag if tag in ("script", "style") else None
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._raw = None

    def handle_data(self, data):
        if self._raw == "script":
            self.scripts[-1] += data
        elif self._raw is None:
            self.text += data


def document(*entries):
    return Parsed(page.document(entries))


def values(parsed):
    return json.loads(parsed.scripts[0])


@pytest.fixture(scope="module")
def compared():
    names = ["a", "b", "c"]
    reference = made_method("standalone", names, rounds=(1,), reputation=False)
    return document(made_method("cgsv", names), made_method("fedsac", names, neurons=4, spread=0.3), reference)


def test_the_page_needs_nothing_from_outside(compared):
    assert not [value for _, name, value in compared.attributes if name == "src"]
    assert all(value.startswith("#") for _, name, value in compared.attributes if name == "href")
    assert "link" not in compared.tags
    policy = next(value for _, name, value in compared.attributes if name == "content" and "default-src" in value)
    assert "default-src 'none'" in policy


def test_parts_come_in_the_order_in_which_people_read(compared):
    parts = ("What 3 clients brought and got: 3 methods", "Fairest is", "Comparison", "Fairness against accuracy",
             "One method at a time", "A statement for each client", "Configuration", "Run it again")  # fmt: skip
    places = [compared.text.index(part) for part in parts]
    assert places == sorted(places)


def test_headings_go_down_one_level_at_a_time(compared):
    levels = [int(tag[1]) for tag in compared.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_every_plot_has_data_a_caption_and_a_text_alternative(compared):
    plots = [value for _, name, value in compared.attributes if name == "data-plot"]
    known = {f"{group}/{k}" for group, own in values(compared)["plots"].items() for k in range(len(own))}
    assert set(plots) == known
    assert compared.tags.count("figcaption") == compared.tags.count("figure") == len(plots)
    described = [value for tag, name, value in compared.attributes if tag == "div" and name == "aria-label"]
    assert sum("." in text for text in described) >= len(plots)


def test_the_fairest_method_is_shown_first_and_training_alone_is_not_ranked(compared):
    chosen = [value for tag, name, value in compared.attributes if (tag, name) == ("option", "selected")]
    assert len(chosen) == 1
    source = page.document([made_method("standalone", ["a", "b"], rounds=(1,)), made_method("cgsv", ["a", "b"])])
    assert re.search(r'<option value="\d" selected>cgsv</option>', source)
    assert "standalone is the reference" in Parsed(source).text


def test_the_best_of_each_column_is_bold_and_undefined_is_a_dash():
    better, worse = made_method("better", ["a", "b"], spread=0.3), made_method("worse", ["a", "b"], spread=0)
    source = page.document([better, worse])
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", source)
    assert [row.count("<strong>") for row in rows] == [9, 2]  # download and seconds are equal
    assert "–" in rows[1]


@pytest.mark.parametrize(
    "name", [NASTY, '"><img src=x onerror=alert(1)>', "</script><script>alert(1)//", "a&lt;b", "<!--"]
)
def test_a_name_stays_a_name(tmp_path, name):
    folder = write_folder(tmp_path / "run", made_run([name, "b", "c"]))
    entries = read_methods([folder])
    plain = Parsed(page.document(read_methods([write_folder(tmp_path / "plain", made_run(["a", "b", "c"]))])))
    parsed = Parsed(page.document(entries))
    assert parsed.tags == plain.tags
    assert f"Client {name}" in parsed.text
    line = values(parsed)["plots"]["0"][1]["data"][0]
    assert line["name"].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")[:10] == name[:10]
    own = Parsed(page.client_document(entries[0], name))
    assert f"Client {name}: what it brought and got" in own.text
    assert own.tags.count("script") == 3


def test_many_nasty_clients_stay_names_too():
    parsed = document(made_method("cgsv", [f"{NASTY} {k}" for k in range(60)], seeds=1))
    assert len(parsed.scripts) == 3
    assert values(parsed)["clients"]["0"]["columns"][0][0].startswith(NASTY)


def test_labels_and_settings_are_escaped(tmp_path):
    run = made_run(["a", "b"])
    run.experiment["federation"] = {"data": NASTY}
    parsed = document(*read_methods([write_folder(tmp_path / "<b>run", run)]))
    assert len(parsed.scripts) == 3
    assert "b" not in parsed.tags
    assert NASTY in parsed.text


def test_markup_escapes_by_itself():
    assert element("a", "<b>", element("br"), title='"<', hidden=False, open=True) == (
        '<a title="&quot;&lt;" open>&lt;b&gt;<br></a>'
    )
    assert "<" not in data({"a": "</script><!--\u2028"}, "x").removeprefix("<script").removesuffix("</script>")[30:]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".", "CON", NASTY, "x" * 500, "ä"])
def test_a_clients_file_stays_in_its_folder(name):
    file = page.statement_file(name)
    assert Path(file).name == file
    assert re.fullmatch(r"statement-[A-Za-z0-9_-]+\.html", file)
    assert len(file) < 100


def test_different_clients_have_different_files():
    assert page.statement_file("3") == "statement-3.html"
    assert page.statement_file("a b") != page.statement_file("a_b") != page.statement_file("a/b")


def test_what_a_method_said_before_its_first_round_is_on_the_page():
    entry = made_method("contract", ["a", "b"], seeds=1)
    entry.runs[0].facts["notes"] = ["Promises are kept to ± 2 points.", "A fairness of <98> can be expected."]
    said = "(seed 0): Promises are kept to ± 2 points. A fairness of <98> can be expected."
    assert said in Parsed(page.document([entry])).text


def test_one_client_gives_a_page():
    parsed = document(made_method("fedsac", ["only"], seeds=1))
    assert "What 1 client brought and got with fedsac" in parsed.text
    assert "undefined" in parsed.text
    assert "nan" not in parsed.text.lower()


def test_a_thousand_clients_are_a_table_to_search_and_the_page_stays_small():
    names = [f"hospital {k}" for k in range(1000)]
    methods = [made_method(f"method{k}", names, neurons=512, rounds=range(1, 60)) for k in range(4)]
    source = page.document(methods)
    assert len(source.encode()) < LIMIT
    parsed = Parsed(source)
    assert "Find one of 1,000 clients" in parsed.text
    assert "cofair report DIR --client NAME" in parsed.text
    assert "Client hospital 7" not in parsed.text
    assert len(values(parsed)["clients"]["0"]["columns"][0]) == 1000
    assert all(len(plot["data"]) <= 8 for plot in values(parsed)["plots"]["0"])


def test_an_interrupted_run_says_where_it_stopped(tmp_path):
    folder = write_folder(tmp_path / "run", made_run(["a", "b"], rounds=range(1, 41)), records=17, cut=True)
    parsed = document(*read_methods([folder]))
    assert parsed.text.count("interrupted after round 17 of 40") == 2  # below the table and in the list of runs
    assert "interrupted after round 17" in Parsed(page.client_document(read_methods([folder])[0], "a")).text


def test_missing_rounds_are_said_and_not_drawn(tmp_path):
    folder = write_folder(tmp_path / "run", made_run(["a", "b"], rounds=(1, 2, 5, 6)))
    parsed = document(*read_methods([folder]))
    assert "rounds 3–4 are missing in its history" in parsed.text
    line = values(parsed)["plots"]["0"][1]["data"][0]
    assert line["y"][2:4] == [None, None]


def test_how_to_run_it_again_is_a_command_that_works(tmp_path):
    write_folder(tmp_path / "my run", made_run(["a", "b"]))
    assert f"cofair run '{tmp_path}/my run/experiment.toml' --out again" in document(*read_methods([tmp_path])).text


def test_a_comparison_of_defaults_is_run_again_by_one_command(tmp_path):
    for method in ("fedavg", "fedsac"):
        for seed in (3, 4):
            run = made_run(["a", "b"], method, seed)
            run.experiment["run"]["seed"] = seed
            run.experiment["method"] = cofair.config.experiment.Experiment.from_dict(
                {"method": {"name": method}}
            ).to_dict()["method"]
            run.experiment["method"] = {
                key: "none" if value is None else value for key, value in run.experiment["method"].items()
            }
            write_folder(tmp_path / f"{method}-seed{seed}", run)
    text = document(*read_methods([tmp_path])).text
    file = tmp_path / "fedavg-seed3" / "experiment.toml"
    assert f"cofair compare --experiment {file} --methods fedavg,fedsac --seeds 2 --out again" in text


def test_a_result_in_memory_reports_itself(tmp_path):
    federation = cofair.federate("digits", "pow", clients=3)
    model = cofair.models.build("mlp", (1, 8, 8), 10, hidden=(8,))
    result = cofair.run(model, federation, "cgsv", rounds=2, steps=1, contribution={"epochs": 1})
    path = result.report(tmp_path / "deep" / "report.html")
    text = Parsed(path.read_text(encoding="utf-8")).text
    assert "What 3 clients brought and got with cgsv" in text
    assert "The federation and model were given in Python" in text


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        page.write([made_method("cgsv", ["a", "b"])], tmp_path)


def test_every_colour_of_plots_is_known_on_a_dark_page(compared):
    dark = interactive.dark_colours()

    def colours(value, key=""):
        if isinstance(value, dict):
            return [one for name, item in value.items() for one in colours(item, name)]
        if isinstance(value, list):
            return [] if key == "colorscale" else [one for item in value for one in colours(item, key)]
        return [value] if key.lower().endswith("color") and value != "rgba(0,0,0,0)" else []

    assert set(colours(values(compared)["plots"])) <= set(dark)

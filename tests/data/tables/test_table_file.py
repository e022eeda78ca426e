"""Tables as people have them are read; what cannot be read is a sentence that says where."""

import pandas as pd
import pytest

import cofair
from cofair.data.tables import table_file
from cofair.data.tables.table_file import read_table
from cofair.errors import UsageError

HEADER = "site,age,sex,died\n"
ROWS = "".join(f"{site},{age}.5,{'fm'[age % 2]},{age % 2}\n" for site in "ab" for age in range(40, 60))
GOOD = HEADER + ROWS


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """Write a table and return the sentence that refuses it, whose file is called t.csv."""
    monkeypatch.chdir(tmp_path)

    def call(content, name="t.csv", **settings):
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        table_file._read.cache_clear()
        with pytest.raises(UsageError) as caught:
            cofair.federate(name, **({"label": "died", "by": "site"} | settings))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return call


def read(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    table_file._read.cache_clear()
    return read_table(str(path)).frame


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace(",", ";").encode(),
        b"\xef\xbb\xbf" + GOOD.replace(",", ";").replace(".", ",").replace("\n", "\r\n").encode(),
        GOOD.replace(",", "\t").encode(),
        GOOD.replace(",", ", ").replace("site", '"site"').replace("\n", "\n\n").encode(),
    ],
    ids=["byte-order mark", "semicolons", "semicolons with decimal commas", "tabs", "spaces, quotes and blank lines"],
)
def test_the_same_table_in_other_clothes(tmp_path, content):
    pd.testing.assert_frame_equal(read(tmp_path, content), read(tmp_path, GOOD.encode()))


def test_row_numbers_that_pandas_wrote_are_no_column(tmp_path):
    frame = read(tmp_path, GOOD.encode())
    pd.testing.assert_frame_equal(read(tmp_path, frame.to_csv().encode()), frame)


def test_the_word_none_is_a_value(tmp_path):
    assert list(read(tmp_path, b"site,therapy\na,None\nb,pills\n")["therapy"]) == ["None", "pills"]


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    assert len(read_table(str(path)).frame) == 1
    path.write_text("a,b\n1,2\n3,4\n")
    assert len(read_table(str(path)).frame) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (GOOD.replace("a,42.5,", "a,,"), "t.csv, line 4: column 'age' has no value: fill it in, or"),
        (GOOD.replace("42.5,", ","), "t.csv, line 4: column 'age' has no value, as in 2 rows: fill it in"),
        (GOOD.replace("43.5,m,", "43.5,NA,"), "t.csv, line 5: column 'sex' has no value"),
        (GOOD + "a,3\n", "t.csv, line 42: column 'died' has no value"),
        (HEADER + '"a",40.5,"f\nm",0\n' + ROWS + "b,50.1,f,\n", "t.csv, line 44: column 'died' has no value"),
        (GOOD + ",50.1,f,1\n", "t.csv, line 42: column 'site' has no value"),
        (GOOD.replace("a,44.5", "\na,unknown"), "t.csv, line 7: column 'age' has 'unknown', but most rows have"),
        (GOOD + "a,1e999,f,1\n", "t.csv, line 42: column 'age' has a number that is not finite or too large."),
        (GOOD + "a,50,f,1,9\n", "t.csv, line 42: has 5 values, but the first line names 4 columns"),
        (HEADER + ROWS.replace("\n", ",9\n"), "t.csv, line 2: has 5 values, but the first line names 4 columns"),
        (GOOD.replace("sex", "age"), "t.csv has two columns named 'age' (columns 2 and 3): rename one of them."),
        (GOOD.replace("sex", ""), "t.csv: column 3 has no name."),
        (HEADER, "t.csv has no rows."),
        (ROWS.replace("a", "1").replace("f", "1"), "t.csv, line 1: has numbers where the names of columns belong"),
        ("", "t.csv is empty."),
        ("\n\n", "t.csv is empty."),
        (HEADER + ROWS.replace(",1\n", ",0\n"), "t.csv: every row has died = 0: there is nothing to learn"),
        (GOOD.replace(",f,", ",é,").encode("latin-1"), "t.csv is not text in UTF-8"),
        (GOOD.encode("utf-16"), "t.csv is not text in UTF-8"),
        (HEADER + '"' + ROWS, "t.csv"),
        (HEADER + "a,1,f,0\nb,2,f,1\na,3,m,1\nb,4,m,0\n", "t.csv has 4 rows, too few"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_a_sentence_with_its_place(refusal, content, said):
    assert refusal(content).startswith(said)


def test_a_damaged_archive_is_a_sentence(refusal):
    assert refusal(b"no archive at all", name="t.csv.gz").startswith("Cannot read the table t.csv.gz: it is damaged")


def test_nothing_to_predict_from_is_a_sentence(refusal):
    assert refusal(GOOD, leave_out=["age", "sex"]) == "t.csv has no column to predict 'died' from."


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("age", [1.0, None, 3.0, 4.0], "the DataFrame, row p1: column 'age' has no value"),
        ("age", [1, "old", 3, 4], "the DataFrame, row p1: column 'age' has 'old', but most rows have numbers there"),
        ("age", pd.to_datetime(["2020-01-01"] * 4), "the DataFrame: column 'age' holds dates or times"),
        ("age", [1j, 2, 3, 4], "the DataFrame: column 'age' holds complex numbers."),
    ],
)
def test_a_frame_is_refused_with_column_and_row(column, values, said):
    frame = pd.DataFrame({"site": list("aabb"), "died": [0, 1, 0, 1], column: values}, index=["p0", "p1", "p2", "p3"])
    with pytest.raises(UsageError) as caught:
        cofair.federate(frame, label="died", by="site")
    assert str(caught.value).startswith(said)


def test_label_and_by_are_for_tables_alone():
    with pytest.raises(UsageError, match="label and by name columns of a table"):
        cofair.federate("digits", label="died")
    with pytest.raises(UsageError, match="data must be a name, a file such as"):
        cofair.federate([1, 2])

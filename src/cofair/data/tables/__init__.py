"""Tables of one's own, as files or DataFrames: what a row says of whom, and what is to be predicted of it."""

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


def is_table(data: str) -> bool:
    """Say whether data is named by the file of a table, and not by the name of a data set."""
    return data.lower().endswith(ENDINGS)

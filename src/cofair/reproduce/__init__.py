"""Published tables, cell by cell: the experiment behind each, and what we measure."""

"""Several methods on the same federations: one row per method, mean and spread over seeds."""

from dataclasses import dataclass, field

import pandas as pd

from cofair.config.job import Job
from cofair.results import notebook
from cofair.results.columns import COUNTED, MEASURED, over_seeds
from cofair.results.result import Outcome
from cofair.results.table_cells import DELIVERED


@dataclass(frozen=True)
class Comparison:
    """The outcomes of every method and seed."""

    outcomes: tuple[Outcome, ...]
    failures: dict[str, str] = field(default_factory=dict)  # by run: why it did not finish
    jobs: tuple[Job, ...] = ()  # of the outcomes, where they were run together

    @property
    def methods(self) -> list[str]:
        """Return the methods in the order in which they were asked for."""
        return list(dict.fromkeys(outcome.method for outcome in self.outcomes))

    def of(self, method: str) -> list[Outcome]:
        """Return a method's outcomes, one per seed."""
        return [outcome for outcome in self.outcomes if outcome.method == method]

    def _repr_html_(self) -> str:
        return notebook.comparison(self)

    def to_frame(self, rule: str = DELIVERED) -> pd.DataFrame:
        """Return one row per method: mean and sample standard deviation over seeds."""
        rows = []
        for method in self.methods:
            own = self.of(method)
            read = [outcome.row(rule) for outcome in own]
            row: dict[str, object] = {"method": method, "rule": rule, "seeds": len(own)}
            for column in MEASURED:
                row |= over_seeds(column, [one[column.name] for one in read])
            row["tested_rounds"] = max(len(outcome.history) for outcome in own)
            row["fairness_defined"] = sum(one["fairness"] is not None for one in read)
            low_high = own[0].fairness_interval if len(own) == 1 and rule == DELIVERED else None
            row["fairness_low"], row["fairness_high"] = low_high or (None, None)
            for column in COUNTED:
                if any(column.name in one for one in read):
                    row |= over_seeds(column, [one.get(column.name) for one in read])
            rows.append(row)
        return pd.DataFrame(rows)

    def every_rule(self) -> pd.DataFrame:
        """Return the table read by every rule that the histories allow, as `summary.csv` holds it."""
        joint = all(record.validation is not None for outcome in self.outcomes for record in outcome.history)
        rules = [DELIVERED, "last", "best"] + (["joint"] if joint else [])
        return pd.concat([self.to_frame(rule) for rule in rules], ignore_index=True)

    def clients_frame(self) -> pd.DataFrame:
        """Return one row per client, method and seed: what it brought and what it got."""
        return pd.DataFrame(
            [
                {"method": outcome.method, "seed": outcome.seed, **client}
                for outcome in self.outcomes
                for client in outcome.summary()["clients"]
            ]
        )

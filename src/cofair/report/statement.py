"""A client's statement: what it brought, what it got and why, in plain sentences."""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cofair import metrics
from cofair.errors import UsageError, nearest
from cofair.report.held_section import held_sentence
from cofair.report.over_rounds import seed_of
from cofair.report.promise_section import promise_sentences, promises
from cofair.report.reported_runs import ReportedMethod
from cofair.report.words import count, data_size, listed, signed

ALPHA = 0.5
CHANGES = 2  # of a reputation that are named
Floats = npt.NDArray[np.float64]


class ClientStatements:
    """The statements of all clients after the runs of one method: means over seeds, reputations of the first seed."""

    def __init__(self, method: ReportedMethod) -> None:
        """Read contributions, rewards and bounds once for all clients."""
        self.method, self.run = method, method.runs[0]
        outcomes = [run.outcome for run in method.runs]
        self.names = outcomes[0].names
        self.samples = np.mean([outcome.sizes for outcome in outcomes], axis=0)
        self.brought: Floats = np.mean([outcome.contributions for outcome in outcomes], axis=0)
        self.got: Floats = np.mean([outcome.accuracies for outcome in outcomes], axis=0)
        self.spread: Floats = np.sqrt(np.mean(np.square([outcome.spread for outcome in outcomes]), axis=0))
        self.download: Floats = np.mean([outcome.history[-1].download for outcome in outcomes], axis=0)
        self.comparable = self.run.contributions_are_accuracies
        self.lower, self.upper = metrics.alpha_bounds(self.brought, self.got, ALPHA)
        self.inside = metrics.within_alpha_bound(self.brought, self.got, ALPHA)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def ranks(self) -> list[int]:
        """Return each client's rank by contribution, 1 for the largest; equal ones share a rank."""
        return [1 + int((self.brought > value).sum()) for value in self.brought]

    def index(self, name: str) -> int:
        """Return the number of a client."""
        if name not in self.names:
            there = f"the clients are {listed(self.names, most=12)}"
            hint = there if len(self.names) <= 12 else nearest(name, self.names[:1000]).rstrip(".")
            raise UsageError(f"There is no client {name!r}: {hint if len(hint) < 300 else there}.".replace("?.", "?"))
        return self.names.index(name)

    def sentences(self, i: int) -> list[str]:
        """Return the statement of client i."""
        sentences = [self._contribution(i), self._reward(i)]
        if self.comparable:
            sentences.append(self._bound(i))
        if (made := promises(self.run)) is not None:
            sentences.append(promise_sentences(self.run, made, i))
        elif reputation := self._reputation(i):
            sentences.append(reputation)
        if (held := held_sentence(self.run, i)) is not None and not self.method.reference:
            sentences.append(held)
        if not self.method.reference:
            sentences.append(self._download(i))
        return sentences

    def entitlement(self, i: int) -> str:
        """Return the bounds of client i in a few words."""
        low, high = 100 * self.lower[i], 100 * self.upper[i]
        return f"{low:.1f} to {high:.1f} %" if high > low else f"above {low:.1f} %"

    def brought_text(self, i: int) -> str:
        """Return the contribution of client i as people read it."""
        return f"{100 * self.brought[i]:.1f} %" if self.comparable else f"{self.brought[i]:.3g}"

    def _contribution(self, i: int) -> str:
        samples = count(round(self.samples[i]), "sample")
        alike = int((self.brought == self.brought[i]).sum())
        shared = f", shared by {alike:,} clients" if alike > 1 else ""
        if self.comparable:
            brought = f"It brought {samples}, which alone train a model of {self.brought_text(i)} {self.run.metric}."
        else:
            measure = self.run.setting("contribution", "measure")
            how = "given from outside" if "contributions" in self.run.facts["given"] or not measure else f"by {measure}"
            brought = f"It brought {samples}; its contribution ({how}) is {self.brought_text(i)}."
        since = self.run.facts.get("joined", {}).get(self.names[i])
        joined = f" It joined before round {since}." if since else ""
        return f"{brought} Rank {self.ranks[i]:,} of {len(self):,} by contribution{shared}.{joined}{self._again(i)}"

    def _again(self, i: int) -> str:
        """Say what contribution the server used in the end, if that is a different one."""
        records = [(r.round, r.contributions[i]) for r in self.run.outcome.history if r.contributions is not None]
        if not records or math.isnan(records[-1][1]) or records[-1][1] == self.run.outcome.contributions[i]:
            return ""
        t, value = records[-1]
        if not self.run.setting("contribution", "every"):
            return f" It was removed by the defence, and counts as the client that brings least{seed_of(self.run)}."
        found = f"{100 * value:.1f} %" if self.comparable else f"{value:.3g}"
        return f" By round {t} this was measured again as {found}, and its reward follows it{seed_of(self.run)}."

    def _reward(self, i: int) -> str:
        got = f"Its reward, the model after round {self.run.outcome.history[-1].round:,}, has {self._got(i)}"
        if not self.comparable:
            return f"{got}; what it would reach alone was not measured."
        gain = 100 * (self.got[i] - self.brought[i])
        if abs(gain) < 0.05:
            return f"{got}, as much as it reaches alone."
        return f"{got}, {abs(gain):.1f} points {'more' if gain > 0 else 'less'} than it reaches alone."

    def _got(self, i: int) -> str:
        """Return how good the delivered model is, and by how much rewards changed in the final rounds."""
        got, change = f"{100 * self.got[i]:.1f} % {self.run.metric}", 100 * self.spread[i]
        if len(self.method.runs) > 1:
            got += f" in the mean of {len(self.method.runs)} seeds"
        return got if math.isnan(change) or change < 0.05 else f"{got} (± {change:.1f} over the final rounds)"

    def _bound(self, i: int) -> str:
        low, high, got = 100 * self.lower[i], 100 * self.upper[i], 100 * self.got[i]
        if high <= low:
            return (
                f"What its contribution earns it here ({high:.1f} %) is not above what it reaches alone "
                f"({low:.1f} %): no reward of this method could be inside its bounds."
            )
        entitled = f"Its contribution entitles it to more than {low:.1f} % and at most {high:.1f} %"
        if self.inside[i]:
            return f"{entitled}: its reward is inside."
        if got > high:
            above = f"{max(got - high, 0.1):.1f} points above that"
            return f"{entitled}: its reward is {above}, more than its contribution earns."
        where = "below" if got < low else "not above"
        return f"{entitled}: its reward is {where} that, so it gains nothing by taking part."

    def _reputation(self, i: int) -> str | None:
        known = [(r.round, r.reputation[i]) for r in self.run.outcome.history if r.reputation is not None]
        known = [(t, value) for t, value in known if not math.isnan(value)]
        rounds, values = [t for t, _ in known], [value for _, value in known]
        if not values:
            return None
        seed = f" (seed {self.run.outcome.seed})" if len(self.method.runs) > 1 else ""
        if len(values) == 1:
            return f"Its reputation in round {rounds[0]} is {values[0]:.3g}{seed}."
        span = f"{values[0]:.3g} in round {rounds[0]} to {values[-1]:.3g} in round {rounds[-1]}{seed}"
        steps = largest_changes(values)
        if not steps:
            return f"Its reputation stayed at {values[0]:.3g} from round {rounds[0]} to round {rounds[-1]}{seed}."
        changes = [f"{signed(values[k] - values[k - 1])} between rounds {rounds[k - 1]} and {rounds[k]}" for k in steps]
        return f"Its reputation went from {span}; it changed most by {listed(changes)}."

    def _download(self, i: int) -> str:
        if (travelled := self.run.facts.get("traffic")) is not None and self.names[i] in travelled:
            down, up = travelled[self.names[i]]
            return f"{data_size(down)} were sent to it, and {data_size(up)} came back."
        share = self.download[i]
        size, rounds = int(self.run.facts.get("parameters", 0)), self.run.outcome.history[-1].round
        text = f"In a round it received {100 * share:.0f} % of a whole model on average"
        if size:
            width = 8 if self.run.setting("run", "precision") == "float64" else 4
            text += f", {data_size(share * size * width * rounds)} over {count(rounds, 'round')}"
        return text + "."


def largest_changes(values: Sequence[float]) -> list[int]:
    """Return where a series changed most, as positions of the later value; invisible changes do not count."""
    series = np.asarray(values, dtype=np.float64)
    changes = np.abs(np.diff(series))
    order = np.argsort(-changes, kind="stable")[:CHANGES]
    return sorted(int(k) + 1 for k in order if changes[k] >= 0.005 * np.abs(series).max())

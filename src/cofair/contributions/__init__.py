"""What a client brings: measures of contribution.

`MEASURES` are measured before training, by name. The functions behind them are pure, so that methods can judge the
uploads of a round: `cosine`, `index`, `leave_one_out`, `divergence`, all over the generic `shapley`.
"""

from cofair.contributions.measures import MEASURES, Measure, find, measure

__all__ = ["MEASURES", "Measure", "find", "measure"]

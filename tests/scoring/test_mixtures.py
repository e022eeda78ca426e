import pytest
import torch
from torch import nn

from cofair.models.blocks import Blocks
from cofair.scoring.mixtures import Mixtures
from cofair.scoring.scorer import Scorer
from tests.conftest import small_stack

MODULES = {
    "stack": small_stack,
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)),
    "tanh": lambda: small_stack(nn.Tanh),
    "no stack": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_mixture_has_taken_blocks_from_one_model_and_scores_as_any_row(name, make_problem):
    problem = make_problem(MODULES[name]())
    scorer = Scorer(problem, problem.federation.validation)
    torch.manual_seed(0)
    whole, own = torch.randn(problem.layout.size).double(), torch.randn(4, problem.layout.size).double()
    blocks = Blocks.rows(problem.layout)
    mixtures = Mixtures(scorer, whole, own, blocks)
    for share in (0.0, 0.4, 1.0):
        taken = torch.rand(4, blocks.count) < share
        rows, metric = mixtures.score(taken)
        from_whole = blocks.spread(taken)
        assert torch.equal(rows[from_whole], whole.expand_as(rows)[from_whole])
        assert torch.equal(rows[~from_whole], own[~from_whole])
        assert metric.tolist() == scorer.score(rows).metric.tolist()


def test_no_models_are_no_matter(make_problem):
    problem = make_problem()
    blocks = Blocks.rows(problem.layout)
    mixtures = Mixtures(
        Scorer(problem, problem.federation.validation), torch.zeros(problem.layout.size).double(),
        torch.zeros(0, problem.layout.size).double(), blocks,
    )  # fmt: skip
    assert len(mixtures.own) == 0

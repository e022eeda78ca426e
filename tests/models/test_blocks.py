import torch
from torch import nn

from cofair.models.blocks import Blocks
from cofair.models.parameters import Layout


def layout():
    return Layout(nn.Sequential(nn.Linear(3, 2), nn.Conv2d(1, 2, 2, bias=False), nn.GroupNorm(1, 4)))


def test_a_block_is_a_unit_with_its_weights_and_its_bias():
    blocks = Blocks.rows(layout())
    assert blocks.count == 2 + 2 + 4
    ones = torch.ones(1, layout().size)
    assert blocks.sums(ones).tolist() == [
        [4, 4, 4, 4, 2, 2, 2, 2]
    ]  # three weights and a bias, 2 × 2 weights, scale and shift
    places = {own.name: (own.start, own.stop) for own in layout().slices}
    row = torch.zeros(1, layout().size)
    for k, name in enumerate(("0.weight", "0.bias", "1.weight", "2.weight", "2.bias")):
        row[0, slice(*places[name])] = 10.0**k
    assert blocks.sums(row).tolist() == [[13, 13, 400, 400, 11000, 11000, 11000, 11000]]


def test_what_is_spread_lies_at_every_entry_of_its_block():
    blocks, own = Blocks.rows(layout()), layout()
    values = torch.arange(blocks.count)[None].float()
    spread = blocks.spread(values)
    assert spread.shape == (1, own.size)
    assert torch.equal(blocks.sums(spread), values * blocks.sums(torch.ones(1, own.size)))
    views = own.views(spread[0])
    assert views["0.weight"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert views["0.bias"].tolist() == [0, 1]
    assert views["2.bias"].tolist() == [4, 5, 6, 7]


def test_a_scalar_parameter_is_a_block():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

    blocks = Blocks.rows(Layout(Scaled()))
    assert (blocks.count, blocks.sums(torch.ones(1, 1)).tolist()) == (1, [[1]])


def test_blocks_of_a_parameter():
    blocks = Blocks.rows(layout())
    assert blocks.of("0.weight") == blocks.of("0.bias") == slice(0, 2)
    assert blocks.of("1.weight") == slice(2, 4)
    assert blocks.of("unknown") is None

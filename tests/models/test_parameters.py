import pytest
import torch
from torch import nn

from cofair.errors import UsageError
from cofair.models.parameters import Layout


def test_a_row_goes_into_a_module_and_back():
    module = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 1, bias=False))
    layout = Layout(module)
    row = torch.arange(layout.size, dtype=torch.float32)
    assert torch.equal(layout.row(layout.module(row)), row)
    assert layout.size == 3 * 2 + 2 + 2 + 2 + 2


def test_views_write_through_to_the_rows():
    layout = Layout(nn.Linear(3, 2))
    rows = layout.new_rows(4, torch.device("cpu")).zero_()
    layout.views(rows)["bias"][1] = 5
    assert rows[1].tolist() == [0] * 6 + [5, 5]
    assert rows[0].abs().sum() == 0


def test_frozen_parameters_and_buffers_are_not_part_of_a_row():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    module.register_buffer("scale", torch.ones(1))
    layout = Layout(module)
    assert layout.size == 6
    assert set(layout.frozen) == {"0.weight", "0.bias"}
    assert torch.equal(layout.module(torch.zeros(6))[0].weight, module[0].weight)


def test_a_module_that_is_changed_later_does_not_change_its_layout():
    module = nn.Linear(1, 1, bias=False)
    layout = Layout(module)
    nn.init.constant_(module.weight, 99.0)
    assert layout.row(layout.prototype) != 99.0


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "nn.GroupNorm"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
        (nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1).double()]), "one floating-point type"),
    ],
)
def test_modules_that_cannot_be_laid_out_are_refused_in_a_sentence(module, sentence):
    with pytest.raises(UsageError, match=sentence):
        Layout(module)

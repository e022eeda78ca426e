import pytest
import torch

from cofair import randomness


def test_stream_of_key_zero_is_the_published_splitmix64_sequence():
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    ours = randomness.stream(torch.tensor(0), 3).tolist()
    assert [value & 0xFFFF_FFFF_FFFF_FFFF for value in ours] == published


def test_addresses_tell_types_and_borders_apart():
    addresses = {randomness.address(*parts) for parts in [(1, "a"), ("1", "a"), ("1a",), (1, "a", 0), ("a", 1)]}
    assert len(addresses) == 5


def test_fold_gives_a_different_key_for_every_number():
    keys = randomness.fold(torch.zeros(1000, dtype=torch.int64), torch.arange(1000))
    assert len(keys.unique()) == 1000


def test_hashes_are_uniform_over_the_sign_and_the_lowest_bit():
    hashes = randomness.stream(torch.tensor(7), 20_000)
    assert abs((hashes > 0).double().mean() - 0.5) < 0.02
    assert abs((hashes & 1).double().mean() - 0.5) < 0.02


@pytest.mark.parametrize("number", [0, 1, 77, -1, 2**63 - 1, -(2**63), randomness.address("phase")])
def test_a_number_folds_as_a_tensor_of_it_does(number):
    keys = randomness.stream(torch.tensor(3), 50)
    assert torch.equal(randomness.fold(keys, number), randomness.fold(keys, torch.tensor(number)))

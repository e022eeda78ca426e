from cofair.methods.sparsified import by_size
from tests.conftest import uploads_of


def test_weights_by_samples_are_as_exact_as_the_run():
    uploads = uploads_of([[1.0], [1.0], [1.0]], [1, 2, 7], absent=[2])
    assert by_size(uploads).tolist() == [1 / 3, 2 / 3, 0]  # in float32 a third is 1e-8 too large


def test_without_anybody_weights_by_samples_are_zero():
    assert by_size(uploads_of([[1.0]], [5], absent=[0])).tolist() == [0]

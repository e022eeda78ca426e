"""The papers' models, each of which declares its neurons."""

import inspect
from collections.abc import Callable, Sequence

from torch import nn

from cofair.errors import UsageError, nearest
from cofair.models.cnn import CNNCifar, CNNMnist
from cofair.models.mlp import MLP
from cofair.models.resnet import ResNet18
from cofair.models.textcnn import TextCNN

__all__ = ["MLP", "MODELS", "CNNCifar", "CNNMnist", "ResNet18", "TextCNN", "build", "model_settings"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "cnn-mnist": CNNMnist,
    "cnn-cifar": CNNCifar,
    "resnet18": ResNet18,
    "textcnn": TextCNN,
}


def build(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    vocabulary: int | None = None,
    **settings: object,
) -> nn.Module:
    """Build a model for inputs (C, H, W), (length,) of token ids or (features,); the caller seeds torch."""
    known = model_settings(name)
    for setting in settings:
        if setting not in known:
            raise UsageError(f"Model {name!r} has no setting {setting!r}: {nearest(setting, known)}")
    if classes < 2:
        raise UsageError(f"Model {name!r} was asked for {classes} classes: it needs at least 2.")
    if not input_shape or min(input_shape) < 1:
        raise UsageError(f"Model {name!r} got inputs of shape {tuple(input_shape)}: every side must be at least 1.")
    if (vocabulary is None) == (name == "textcnn"):
        raise UsageError(
            "Model 'textcnn' reads token ids and needs the size of their vocabulary: choose another model for "
            "data that are numbers."
            if vocabulary is None
            else f"Model {name!r} cannot read token ids: choose 'textcnn' for texts."
        )
    if vocabulary is not None:
        settings = {"vocabulary": vocabulary, **settings}
    return MODELS[name](tuple(input_shape), classes, **settings)


def model_settings(name: str) -> dict[str, object]:
    """Return the settings of a model with their defaults."""
    if name not in MODELS:
        raise UsageError(f"Unknown model {name!r}: {nearest(name, MODELS)}")
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

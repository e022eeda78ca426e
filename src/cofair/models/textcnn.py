"""The text network of CGSV (MR and SST): convolutions over word vectors, max over time."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cofair.errors import UsageError
from cofair.models.neuron_layers import NeuronLayer, Part

KERNEL = 3
CONVOLUTIONS = 3


class TextCNN(nn.Module):
    """Word vectors of 300, three parallel convolutions of 128 filters over 3 words, max over time."""

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        vocabulary: int,
        *,
        embedding: int = 300,
        filters: int = 128,
        dropout: float = 0.5,
    ) -> None:
        """Build the network for token ids below `vocabulary`."""
        super().__init__()
        if len(input_shape) != 1 or vocabulary < 1:
            raise UsageError(
                f"Model 'textcnn' needs texts as token ids of shape (length,), but an input here has shape "
                f"{tuple(input_shape)} and the vocabulary {vocabulary} words."
            )
        if embedding < 1 or filters < 1 or not 0 <= dropout < 1:
            raise UsageError(
                f"Model 'textcnn' got embedding = {embedding}, filters = {filters}, dropout = {dropout}: the "
                "first two must be at least 1, dropout at least 0 and below 1."
            )
        self.embedding = nn.Embedding(vocabulary, embedding)
        # of equal kernels; they stay three tensors because CGSV sparsifies tensor by tensor
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, filters, KERNEL) for _ in range(CONVOLUTIONS))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = nn.Linear(CONVOLUTIONS * filters, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the outputs (B, C) for token ids (B, length)."""
        words = self.embedding(tokens).transpose(1, 2)
        if words.shape[-1] < KERNEL:
            words = F.pad(words, (0, KERNEL - words.shape[-1]))  # zero vectors: no word of the vocabulary
        # the same as the activation before the maximum, which then sees one number per sentence and not one per word
        found = [convolution(words).amax(-1).relu() for convolution in self.convolutions]
        outputs: Tensor = self.head(self.dropout(torch.cat(found, -1)))
        return outputs

    def neurons(self) -> tuple[NeuronLayer, ...]:
        """Return the filters."""
        filters = self.head.in_features // CONVOLUTIONS
        return tuple(
            NeuronLayer(
                f"filters{i + 1}",
                filters,
                made_by=(f"convolutions.{i}.weight", f"convolutions.{i}.bias"),
                read_by=(Part("head.weight", i * filters, (i + 1) * filters),),
            )
            for i in range(CONVOLUTIONS)
        )

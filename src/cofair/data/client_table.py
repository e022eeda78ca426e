"""All clients' samples as one table, as engines read them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ClientTable:
    """Clients' samples as a table: client i owns positions `offsets[i]` to `offsets[i] + sizes[i]`.

    Position p is the sample `inputs[rows[p]]` with label `labels[p]`: clients of several federations can
    share one copy of the inputs and still see labels of their own.
    """

    inputs: Tensor
    rows: Tensor
    labels: Tensor
    offsets: Tensor
    sizes: Tensor  # stays on the CPU: the host plans with it
    keys: Tensor

    def __len__(self) -> int:
        return int(self.sizes.numel())

    def select(self, clients: Tensor) -> "ClientTable":
        """Return the table of some clients, in the given order."""
        return ClientTable(
            self.inputs, self.rows, self.labels,
            self.offsets[clients.to(self.offsets.device)], self.sizes[clients],
            self.keys[clients.to(self.keys.device)],
        )  # fmt: skip

    def samples(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and labels at positions of any shape."""
        flat = positions.reshape(-1)
        x = self.inputs.index_select(0, self.rows.index_select(0, flat))
        return x.view(*positions.shape, *x.shape[1:]), self.labels.index_select(0, flat).view(positions.shape)

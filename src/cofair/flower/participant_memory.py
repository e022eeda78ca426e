"""What a participant remembers between rounds: the model it holds, its last update, its optimiser's memory.

It lives in Flower's context, in the SuperNode's memory, and is lost when the SuperNode restarts. Model and update are
zero outside the last reward. The optimiser's memory is not: it is made of the participant's own gradients, and with
moments (Adam, momentum) it still moves parameters that are out of scope now and may come back.
"""

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from torch import Tensor

from cofair.engine.protocol import ClientStates
from cofair.flower import messages

_VERSION, _ARRAYS, _OPTIMISER = "cofair.version", "cofair.arrays", "optimiser."


def base(context: Context, wanted: str, nothing: Tensor) -> Tensor | None:
    """Return the row that a message builds on; None if this participant no longer has it.

    "" stands for a row of zeros, "v" for the model received as version v, "v+" for that model after training.
    """
    if not wanted:
        return nothing
    version, trained, _ = wanted.partition("+")
    known = context.state.config_records.get(_VERSION)
    if known is None or known["version"] != version:
        return None
    held = context.state.array_records[_ARRAYS]
    row = _tensor(messages.numbers(held["row"]), nothing.device)
    return row + _tensor(messages.numbers(held["update"]), nothing.device) if trained else row


def optimiser(context: Context, device: torch.device) -> ClientStates:
    """Return the memory of the optimiser."""
    held = context.state.array_records.get(_ARRAYS, ArrayRecord())
    own = {name: messages.numbers(array) for name, array in held.items() if name.startswith(_OPTIMISER)}
    return ClientStates({name.removeprefix(_OPTIMISER): _tensor(values, device) for name, values in own.items()})


def remember(context: Context, version: str, row: Tensor, update: Tensor, states: ClientStates) -> None:
    """Keep the model that was received, the update made from it, both within its scope, and the optimiser's memory."""
    held = {"row": row, "update": update, **{_OPTIMISER + name: values for name, values in states.optimiser.items()}}
    context.state[_VERSION] = ConfigRecord({"version": version})
    context.state[_ARRAYS] = messages.array_record({name: values.cpu().numpy() for name, values in held.items()})


def _tensor(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.copy()).to(device)  # the values are in read-only memory

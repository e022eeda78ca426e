"""How much each neuron matters: exactly, by leaving it out, or by the first order of that.

FedSAC's importance (Wang et al., KDD 2024) of neuron k is the loss on the server's validation set without the neuron
less the loss with it. It is often negative: then the model is better without it, and the paper does not say how
the shares that reputations pay for are made of such values. `transform` offers the readings that are in use.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cofair.errors import DivergedError, UsageError, nearest
from cofair.scoring.nested import removal_changes
from cofair.scoring.scorer import Scorer


@torch.no_grad()
def by_removal(scorer: Scorer, base: Tensor) -> Tensor:
    """Return I_k = loss of base (D,) without neuron k − loss with it, for all K neurons, in float64."""
    neurons = scorer.neurons()
    if scorer.stack is None:
        without_one = ~torch.eye(neurons.count, dtype=torch.bool, device=base.device)
        # layer by layer: what is computed before a layer is then the same for all that differ in it
        asked = [None, *(without_one[where] for where in neurons.slices)]
        whole, *without = (_losses(scorer, base, masks) for masks in asked)
        return torch.cat([(own - whole).mean(1, dtype=torch.float64) for own in without])
    changes = torch.zeros(neurons.count, dtype=torch.float64, device=base.device)
    for a, b in scorer.sample_ranges(1):
        x, y = scorer.samples.x[a:b], scorer.samples.y[a:b]
        changes += removal_changes(scorer.stack, base, x, y, scorer.problem.loss)
    return changes / len(scorer.samples)


def _losses(scorer: Scorer, base: Tensor, masks: Tensor | None) -> Tensor:
    losses = scorer.score(base, masks, per_sample=True).losses
    assert losses is not None
    return losses


def taylor(scorer: Scorer, base: Tensor) -> Tensor:
    """Return the first order of I_k at base (D,), one backward pass for all K neurons, in float64.

    Leaving out a neuron zeroes what it sends to its readers, so I_k ≈ −Σ g_p θ_p over the weights p that read it. The
    weights that make it are not counted as well: they scale the same activation and would count it twice.
    """
    neurons, samples = scorer.neurons(), scorer.samples
    layout, forward = scorer.problem.layout, scorer.forward
    whole = torch.ones(1, neurons.count, device=base.device)
    fixed = {**layout.views(base), **layout.frozen}
    extras = {name: value[0] for name, value in forward.mask_extras(whole).items()}
    with torch.enable_grad():
        leaves = {
            name: (extras[name] if name in extras else fixed[name]).detach().requires_grad_()
            for name in neurons.first_order_names
        }
        gradients = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        for a, b in scorer.sample_ranges(3):
            outputs = forward.evaluate({**fixed, **leaves}, {**extras, **leaves}, samples.x[a:b])
            loss = scorer.problem.loss(outputs, samples.y[a:b]).sum() / len(samples)
            parts = torch.autograd.grad(loss, tuple(leaves.values()), allow_unused=True)
            for name, part in zip(leaves, parts, strict=True):
                if part is not None:  # a module need not use all it has
                    gradients[name] += part
    return neurons.summed({name: -gradient * leaves[name].detach() for name, gradient in gradients.items()})


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "shift": lambda importance: importance - importance.min(),
    "sigmoid": torch.sigmoid,
    "clamp": lambda importance: importance.clamp(min=0),
    "abs": torch.abs,
    "raw": lambda importance: importance,
}


def transform(importance: Tensor, how: str = "shift") -> Tensor:
    """Turn importances (K,) into shares that sum to 100, in float64.

    Where nothing is left to share (importances that are all equal under "shift", all negative under "clamp", that
    sum to nothing or less under "raw"), all neurons get the same share.
    """
    if how not in TRANSFORMS:
        raise UsageError(f"Unknown importance transform {how!r}: {nearest(how, TRANSFORMS)}")
    wrong = int((~importance.isfinite()).sum())
    if wrong:
        raise DivergedError(
            f"The importances of {wrong} of {len(importance)} neurons are not finite numbers: training has diverged"
        )
    weights = TRANSFORMS[how](importance.double())
    total = weights.sum()
    if total <= 1e-9 * weights.abs().sum():
        return torch.full_like(weights, 100 / len(weights))
    return 100 * weights / total

"""Promises that could not be kept: most models are in the end much better, or much worse, than what is promised."""

import numpy as np

from cofair.results.record import Record

FAR = 0.03  # of the metric: more than that is not the luck of a search


def unkept(record: Record, names: tuple[str, ...]) -> str | None:
    """Say by how much most clients' models miss what they are promised in a round; None where they do not.

    Who is promised the whole model gets it: only those who are promised less can tell whether promises are kept.
    """
    if record.promised is None or record.validated is None:
        return None
    promised, validated = np.array(record.promised), np.array(record.validated)
    known = np.isfinite(promised) & np.isfinite(validated)
    if not known.any():
        return None
    less = known & (promised < promised[known].max())
    misses = np.where(less, validated - promised, 0)
    for sign, word in ((1, "better"), (-1, "worse")):
        far = sign * misses > FAR
        if 2 * far.sum() > less.sum():
            worst = int((sign * misses).argmax())
            return (
                f"Promises could not be kept: {far.sum()} of the {less.sum()} clients that are promised less than the "
                f"best are left with models that are more than {100 * FAR:.0f} points {word} on the validation set "
                f"than promised (client {names[worst]!r}: promised {100 * promised[worst]:.1f} %, has "
                f"{100 * validated[worst]:.1f} %)."
            )
    return None

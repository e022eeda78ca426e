"""What clients hold, measured after the last round: each chooses the best that it can make of all it was handed.

Where the clients' data is elsewhere nothing is tuned, and the server's validation set chooses; without one, what is
kept counts as held. The test set only judges what was chosen.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cofair.data.held_back import divided
from cofair.engine.protocol import Delivered
from cofair.results.held import Floats, Held
from cofair.runs.kept import Kept
from cofair.runs.own_choice import DOUBT, FORGOTTEN, Judge, Judged, OwnSamples, by_samples, choice
from cofair.runs.setup import Setup
from cofair.runs.tuning import tuned


def held(setup: Setup, kept: Kept, delivered: Delivered, contributions: Tensor) -> Held:
    """Return what each client holds, which kept what it was handed, is delivered a model, and has data of its own."""
    clients = len(setup.problem.federation)
    made = all_made(setup, kept, delivered)
    if made.judged is None:
        chosen = ["kept"] * clients
    else:
        chosen = choice(made.judged if made.forgetting is None else forgetful(made.judged, FORGOTTEN * made.forgetting))
    accuracies = np.array([made.tested[name][i] for i, name in enumerate(chosen)])
    return Held(contributions.double().cpu().numpy(), accuracies, tuple(chosen), made.tested)


@dataclass(frozen=True)
class Made:
    """Everything that clients can make: its accuracies on the test set, and how good clients find it.

    `judged` is None where they have nothing to judge by. `forgetting` (N,) is what it would cost each client if a model
    that it trains on its own data forgot all about the classes that it lacks.
    """

    tested: dict[str, Floats]
    judged: dict[str, Judged] | None
    forgetting: Tensor | None = None


def all_made(setup: Setup, kept: Kept, delivered: Delivered, doubt: float = DOUBT) -> Made:
    """Return what clients can make of what they kept and are delivered, and of data of their own."""
    problem = setup.problem
    clients = len(problem.federation)
    kept = kept.with_models(delivered.parameters, delivered.neuron_masks, problem.neurons)
    models = {"delivered": delivered, **kept.candidates()}
    tests = by_samples(setup.tester, clients)
    judge: Judge | None = None if setup.validation is None else by_samples(setup.validation, clients)
    forgetting, most = None, list[Floats]()
    if problem.federation.here:
        own = divided(problem.federation, problem.seed)
        judge = OwnSamples(problem, own, doubt)
        models["tuned"], best = tuned(setup, own, [delivered, models["kept"]], judge, tests)
        most.append(best.double().cpu().numpy())
        forgetting = judge.forgetting(judge(delivered))
    tested = {name: tests(own_models).metric.cpu().numpy() for name, own_models in models.items()}
    tested["most"] = np.max([*tested.values(), *most], axis=0)
    judged = None if judge is None else {name: judge(own_models) for name, own_models in models.items()}
    return Made(tested, judged, forgetting)


def forgetful(judged: dict[str, Judged], cost: Tensor) -> dict[str, Judged]:
    """Return how good clients find models, if training on their own data costs them something (N,)."""
    return judged | {"tuned": judged["tuned"].less(cost)}

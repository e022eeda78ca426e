"""What clients hold, measured after the last round: each chooses the best that it can make of all it was handed.

Where the clients' data is elsewhere nothing is tuned, and the server's validation set chooses; without one, what is
kept counts as held. The test set only judges what was chosen.
"""

import numpy as np
from torch import Tensor

from cofair.data.held_back import divided
from cofair.engine.protocol import Delivered
from cofair.results.held import Held
from cofair.runs.kept import Kept
from cofair.runs.own_choice import OwnSamples, by_samples, choice
from cofair.runs.setup import Setup
from cofair.runs.tuning import tuned


def held(setup: Setup, kept: Kept, delivered: Delivered, contributions: Tensor) -> Held:
    """Return what each client holds, which kept what it was handed, is delivered a model, and has data of its own."""
    problem = setup.problem
    clients = len(problem.federation)
    kept = kept.with_models(delivered.parameters, delivered.neuron_masks, problem.neurons)
    models = {"delivered": delivered, **kept.candidates()}
    most_tuned = None
    if problem.federation.here:
        own = divided(problem.federation, problem.seed)
        judge = OwnSamples(problem, own)
        by_test = by_samples(setup.tester, clients)
        models["tuned"], most_tuned = tuned(setup, own, [delivered, models["kept"]], judge, by_test)
        judged = {name: judge(own_models) for name, own_models in models.items()}
        judged["tuned"] = judged["tuned"].less(judge.forgetting(judged["delivered"]))
        chosen = choice(judged)
    elif setup.validation is not None:
        judge_all = by_samples(setup.validation, clients)
        chosen = choice({name: judge_all(own_models) for name, own_models in models.items()})
    else:
        chosen = ["kept"] * clients
    parts = {}
    for name, own_models in models.items():
        found = setup.tester.score(own_models.parameters, own_models.neuron_masks).metric
        parts[name] = found.double().expand(clients).cpu().numpy()
    tops = [*parts.values(), *([] if most_tuned is None else [most_tuned.double().cpu().numpy()])]
    parts["most"] = np.max(tops, axis=0)
    accuracies = np.array([parts[name][i] for i, name in enumerate(chosen)])
    return Held(contributions.double().cpu().numpy(), accuracies, tuple(chosen), parts)

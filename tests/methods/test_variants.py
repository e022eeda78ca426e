"""What holds for methods in all their variants: engines agree, clients have no order, nothing makes a NaN.

With the defaults alone `test_every_method.py` checks the same, and more, of every method.
"""

from dataclasses import fields, replace

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.data.federation import Federation
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.protocol import ClientStates, Uploads
from cofair.engine.vectorised import VectorisedEngine
from cofair.methods import get
from cofair.methods.cffl import CFFL
from cofair.methods.cgsv import CGSV
from cofair.methods.contract import Contract
from cofair.methods.dw import DW
from cofair.methods.eci import ECI
from cofair.methods.fedave import FedAVE
from cofair.methods.fedavg import FedAvg
from cofair.methods.fedfv import FedFV
from cofair.methods.fedrac import FedRAC
from cofair.methods.fedrolex import FedRolex
from cofair.methods.fedsac import FedSAC
from cofair.methods.fjord import FjORD
from cofair.methods.heterofl import HeteroFL
from cofair.methods.iafl import IAFL
from cofair.methods.qffl import QFFL
from cofair.methods.rffl import RFFL
from cofair.methods.rr import RR
from cofair.models.mlp import MLP
from tests.driving import prepare

METHODS = [
    FedAvg(), FedAvg(personalise_units=3, carry_over=True, weights="size"),
    QFFL(), QFFL(personalise_units=0, q=2.0), FedFV(), FedFV(alpha=0.4, tau=3),
    CFFL(), CFFL(share="classes"), CFFL(version="original", sparsify="all", share="contributions"),
    CFFL(version="original", theta=0.3, aggregate="mean", entries="random", growing=True),
    CFFL(reputation_from="contributions"), RFFL(patience=1), RFFL(patience=0, reputation_from="contributions"),
    IAFL(q=0.5), IAFL(kappa=0.5, reputation_from="size"), DW(), DW(reputation_from="contributions"), RR(), RR(turns=3),
    ECI(), ECI(reputation_from="contributions"), HeteroFL(beta=3.0), HeteroFL(share="linear", count="nonzero"),
    FjORD(beta=3.0), FedRolex(beta=3.0), FedRolex(step=-1, share="linear"),
    CGSV(), CGSV(measure="euclidean", sparsify="all"), CGSV(reputation_from="contributions", drop_one=True),
    FedAVE(), FedAVE(divergence_in="quota"), FedAVE(divergence_in="reputation"), FedAVE(divergence_in="neither"),
    FedSAC(), FedSAC(importance_transform="raw", count="nonzero", interval=1), FedSAC(without_allocation=True),
    FedSAC(importance_transform="clamp", without_aggregation=True, interval=2), FedRAC(pack=2),
    FedRAC(pack=2, pack_offset=1, count="mask", beta=10.0), FedRAC(pack=3, without_allocation=True),
    FedRAC(pack=1, without_reputation=True, beta=5.0),
    Contract(), Contract(curve="bcf_middle", first="mixed", every=1), Contract(first="largest", power=0.0),
    Contract(guarded="rows", curve="proportional", freshness=(0.0,), looks=2),
    Contract(hands="submodels"), Contract(hands="submodels", fit="halves", pack=4),
    Contract(hands="submodels", pays="neurons"), Contract(hands="submodels", curve="proportional", pack=2),
    Contract(hands="submodels", curve="bcf_middle", count="mask", pack=3),
]  # fmt: skip
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)
every_variant = pytest.mark.parametrize("method", [m for m in METHODS if m != type(m)()], ids=repr)


def samples(n, seed):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=random, dtype=torch.float64)
    return x, (x[:, :3] + 0.3 * torch.randn(n, 3, generator=random, dtype=torch.float64)).argmax(1)


CLIENTS = {"a": samples(7, 1), "b": samples(40, 2), "c": samples(19, 3), "d": samples(33, 4), "e": samples(20, 5)}
BROUGHT = {"a": 0.3, "b": 0.7, "c": 0.55, "d": 0.65, "e": 0.7}
EMPTY = (torch.zeros(0, 6, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))


def prepared(method, clients, brought, device="cpu", **training):
    federation = Federation(
        list(clients.values()), validation=samples(25, 6), test=samples(30, 7), names=list(clients), classes=3
    )
    tables = {"training": {"steps": 3, "batch_size": 8, "lr": 0.1, "rounds": 8, **training}}
    experiment = Experiment.from_dict({"run": {"precision": "float64", "device": device}, **tables})
    experiment = replace(experiment, method=method)
    torch.manual_seed(1)
    contributions = torch.tensor([brought[name] for name in clients], dtype=torch.float64)
    model = MLP((6,), 3, hidden=(10, 6))
    return prepare(experiment, federation=federation, model=model, contributions=contributions)


def one_round(method, server, engine, state, t):
    for phase in method.phases(server, t):
        rewards = method.rewards(server, state, t, phase)
        uploads, _ = engine.train(rewards, ClientStates(), t)
        state = method.learn(server, state, rewards, uploads, t, phase)
    return state


def after(method, setup, rounds=3):
    state = method.start(setup.server)
    for t in range(1, rounds + 1):
        state = one_round(method, setup.server, setup.engine, state, t)
    return state


def tensors(state):
    found = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in found.items() if value is not None}


def assert_finite(method, server, state):
    for name, value in tensors(state).items():
        assert bool(torch.isfinite(value).all()), name
    rewards = method.rewards(server, state, 4, method.phases(server, 4)[0])
    assert bool(torch.isfinite(rewards.parameters).all())


@every_variant
def test_the_loop_and_the_vectorised_engine_agree(method):
    setup = prepared(method, CLIENTS, BROUGHT)
    engines = [LoopEngine(setup.problem), VectorisedEngine(setup.problem)]
    state = method.start(setup.server)
    for t in (1, 2, 3):
        state, other = (one_round(method, setup.server, engine, state, t) for engine in engines)
        for name, value in tensors(state).items():
            assert torch.allclose(value.double(), tensors(other)[name].double(), rtol=0, atol=1e-9), name


@pytest.mark.gpu
@every_method
def test_a_gpu_gives_what_the_cpu_gives(method):
    one, other = (after(method, prepared(method, CLIENTS, BROUGHT, device), rounds=2) for device in ("cpu", "cuda"))
    for name, value in tensors(one).items():
        assert torch.allclose(value.double(), tensors(other)[name].double().cpu(), rtol=0, atol=1e-9), name


@every_variant
def test_permuting_clients_permutes_everything(method):
    order = ["d", "a", "e", "c", "b"]
    rows = [list(CLIENTS).index(name) for name in order]
    first = prepared(method, CLIENTS, BROUGHT)
    second = prepared(method, {name: CLIENTS[name] for name in order}, BROUGHT)
    one, other = after(method, first), after(method, second)
    for name, value in tensors(one).items():
        if len(value) == len(CLIENTS):  # no row of parameters and no layer of the model has as many entries
            value = value[rows]
        assert torch.allclose(value.double(), tensors(other)[name].double(), rtol=0, atol=1e-9), name
    delivered = [method.delivered(setup.server, state) for setup, state in ((first, one), (second, other))]
    masks = [d.neuron_masks for d in delivered]
    assert masks[0] is masks[1] is None or torch.equal(masks[0][rows], masks[1])


@every_variant
def test_a_client_without_data_and_a_client_alone_are_no_trouble(method):
    for clients in ({**CLIENTS, "f": EMPTY}, {"b": CLIENTS["b"]}):
        setup = prepared(method, clients, {**BROUGHT, "f": 0.1})
        assert_finite(method, setup.server, after(method, setup))


@every_method
def test_updates_of_zeros_move_nobody(method):
    setup = prepared(method, CLIENTS, BROUGHT, lr=1e-30)
    state = after(method, setup)
    assert_finite(method, setup.server, state)
    models = method.delivered(setup.server, state).parameters
    assert torch.allclose(models, setup.server.initial.expand_as(models), rtol=0, atol=1e-9)


@every_method
def test_a_round_in_which_nobody_answers_changes_no_model(method):
    setup = prepared(method, CLIENTS, BROUGHT)
    server = setup.server
    state = after(method, setup, rounds=2)
    before = method.delivered(server, state).parameters
    phase = method.phases(server, 3)[0]
    rewards = method.rewards(server, state, 3, phase)
    nothing = torch.zeros(5, len(server.initial), dtype=torch.float64)
    unknown = {"loss_before": torch.full((5,), torch.nan), "batch_losses_before": torch.full((5, 1), torch.nan)}
    silence = Uploads(nothing, torch.zeros(5, dtype=torch.bool), server.sizes, unknown)
    state = method.learn(server, state, rewards, silence, 3, phase)
    assert_finite(method, server, state)
    if not (isinstance(method, IAFL) and method.q):  # which resets models to the reference model, uploads or not
        assert torch.allclose(method.delivered(server, state).parameters, before, rtol=0, atol=1e-12)


@every_method
@pytest.mark.parametrize("brought", [0.4, -1.0])
def test_equal_clients_get_equal_rewards(method, brought):
    clients = dict.fromkeys("abc", CLIENTS["b"])
    setup = prepared(method, clients, dict.fromkeys("abc", brought), batch_size=64, steps=2)
    delivered = method.delivered(setup.server, after(method, setup))
    if isinstance(method, RR):
        return  # by design: each leaves with what had been learned when its turn came
    if delivered.parameters.dim() == 2:
        assert torch.allclose(delivered.parameters, delivered.parameters[:1], rtol=0, atol=1e-9)
    if delivered.neuron_masks is not None:
        assert bool(delivered.neuron_masks.all())


def test_every_method_is_registered_under_its_name():
    for method in METHODS:
        assert get(method.name) is type(method)

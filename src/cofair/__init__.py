"""Federated learning in which every participant receives a model as good as what it brought.

Everything that users need is here: `run`, `compare` and `sweep` for experiments, `federate` and `Federation` for data,
and what methods of one's own are made of. Names are imported on first use, so that `import cofair` is quick.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from cofair import contributions, methods, metrics, models
    from cofair.config.experiment import Experiment
    from cofair.data.build import federate
    from cofair.data.federation import Federation
    from cofair.engine.phases import Phase
    from cofair.engine.protocol import Delivered, Rewards, Uploads
    from cofair.engine.work import Work
    from cofair.errors import CofairError, RunError, UsageError
    from cofair.methods.families.sparse_aggregate import SparsifiedMethod
    from cofair.methods.families.submodels import SubmodelMethod
    from cofair.methods.method import Method
    from cofair.methods.registry import register
    from cofair.methods.rules.aggregation import mean_over_clients, mean_over_holders
    from cofair.methods.server import Server
    from cofair.models.parameters import Layout
    from cofair.neurons.map import NeuronMap
    from cofair.report.page import write_report as write_report
    from cofair.results.comparison import Comparison
    from cofair.results.listener import Listener
    from cofair.results.result import Result
    from cofair.runs.compare import compare
    from cofair.runs.single import run
    from cofair.runs.sweep import sweep
    from cofair.settings import setting
    from cofair.storage.export import export_reward as export_reward

__all__ = [
    "CofairError", "Comparison", "Delivered", "Experiment", "Federation", "Layout", "Listener", "Method",
    "NeuronMap", "Phase", "Result", "Rewards", "RunError", "Server", "SparsifiedMethod", "SubmodelMethod",
    "Uploads", "UsageError", "Work", "__version__", "compare", "contributions", "federate", "mean_over_clients",
    "mean_over_holders", "methods", "metrics", "models", "register", "run", "setting", "sweep",
]  # fmt: skip

_MODULES = ("contributions", "methods", "metrics", "models")
_HOMES = {
    "CofairError": "cofair.errors",
    "Comparison": "cofair.results.comparison",
    "Delivered": "cofair.engine.protocol",
    "Experiment": "cofair.config.experiment",
    "Federation": "cofair.data.federation",
    "Layout": "cofair.models.parameters",
    "Listener": "cofair.results.listener",
    "Method": "cofair.methods.method",
    "NeuronMap": "cofair.neurons.map",
    "Phase": "cofair.engine.phases",
    "Result": "cofair.results.result",
    "Rewards": "cofair.engine.protocol",
    "RunError": "cofair.errors",
    "Server": "cofair.methods.server",
    "SparsifiedMethod": "cofair.methods.families.sparse_aggregate",
    "SubmodelMethod": "cofair.methods.families.submodels",
    "Uploads": "cofair.engine.protocol",
    "UsageError": "cofair.errors",
    "Work": "cofair.engine.work",
    "compare": "cofair.runs.compare",
    "federate": "cofair.data.build",
    "mean_over_clients": "cofair.methods.rules.aggregation",
    "mean_over_holders": "cofair.methods.rules.aggregation",
    "register": "cofair.methods.registry",
    "run": "cofair.runs.single",
    "setting": "cofair.settings",
    "sweep": "cofair.runs.sweep",
    # what methods of Result do: by these names lower layers reach what is built on them
    "export_reward": "cofair.storage.export",
    "write_report": "cofair.report.page",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `cofair --help` does not wait for torch."""
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'cofair' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"cofair.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, for editors and notebooks."""
    return sorted(__all__)

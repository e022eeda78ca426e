"""Federated learning in which every participant receives a model as good as what it brought.

Everything that users need is here: `run`, `compare` and `sweep` for experiments, `federate` and `Federation` for data,
and what methods of one's own are made of. Names are imported on first use, so that `import cofair` is quick.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from cofair import contributions, methods, metrics, models
    from cofair.config.experiment import Experiment
    from cofair.config.job import Job
    from cofair.data.build import federate
    from cofair.data.federation import Federation
    from cofair.engine.phases import TRAIN, Phase
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
    from cofair.report.figure_files import write_figures
    from cofair.report.page import write_report as write_report
    from cofair.report.reported_runs import read_methods
    from cofair.results.comparison import Comparison
    from cofair.results.held import Held
    from cofair.results.listener import Listener, Listeners
    from cofair.results.record import Record
    from cofair.results.result import Outcome, Result
    from cofair.results.sweep_result import SweepResult
    from cofair.runs.compare import compare
    from cofair.runs.single import run
    from cofair.runs.sweep import sweep
    from cofair.settings import setting
    from cofair.storage.export import export_reward as export_reward
    from cofair.tracking.base import tracked

__all__ = [
    "TRAIN",
    "CofairError",
    "Comparison",
    "Delivered",
    "Experiment",
    "Federation",
    "Held",
    "Job",
    "Layout",
    "Listener",
    "Listeners",
    "Method",
    "NeuronMap",
    "Outcome",
    "Phase",
    "Record",
    "Result",
    "Rewards",
    "RunError",
    "Server",
    "SparsifiedMethod",
    "SubmodelMethod",
    "SweepResult",
    "Uploads",
    "UsageError",
    "Work",
    "__version__",
    "compare",
    "contributions",
    "federate",
    "mean_over_clients",
    "mean_over_holders",
    "methods",
    "metrics",
    "models",
    "read_methods",
    "register",
    "run",
    "setting",
    "sweep",
    "tracked",
    "write_figures",
]  # fmt: skip

_MODULES = ("contributions", "methods", "metrics", "models")
_HOMES = {
    "CofairError": "cofair.errors",
    "Comparison": "cofair.results.comparison",
    "Delivered": "cofair.engine.protocol",
    "Experiment": "cofair.config.experiment",
    "Federation": "cofair.data.federation",
    "Held": "cofair.results.held",
    "Job": "cofair.config.job",
    "Layout": "cofair.models.parameters",
    "Listener": "cofair.results.listener",
    "Listeners": "cofair.results.listener",
    "Method": "cofair.methods.method",
    "NeuronMap": "cofair.neurons.map",
    "Outcome": "cofair.results.result",
    "Phase": "cofair.engine.phases",
    "Record": "cofair.results.record",
    "Result": "cofair.results.result",
    "Rewards": "cofair.engine.protocol",
    "RunError": "cofair.errors",
    "Server": "cofair.methods.server",
    "SparsifiedMethod": "cofair.methods.families.sparse_aggregate",
    "SubmodelMethod": "cofair.methods.families.submodels",
    "SweepResult": "cofair.results.sweep_result",
    "TRAIN": "cofair.engine.phases",
    "Uploads": "cofair.engine.protocol",
    "UsageError": "cofair.errors",
    "Work": "cofair.engine.work",
    "compare": "cofair.runs.compare",
    "federate": "cofair.data.build",
    "mean_over_clients": "cofair.methods.rules.aggregation",
    "mean_over_holders": "cofair.methods.rules.aggregation",
    "read_methods": "cofair.report.reported_runs",
    "register": "cofair.methods.registry",
    "run": "cofair.runs.single",
    "setting": "cofair.settings",
    "sweep": "cofair.runs.sweep",
    "tracked": "cofair.tracking.base",
    "write_figures": "cofair.report.figure_files",
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

"""Federated learning in which every participant receives a model as good as what it brought."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cofair.config.experiment import Experiment
    from cofair.data.build import federate
    from cofair.data.federation import Federation
    from cofair.report.page import write_report as write_report
    from cofair.results.result import Result
    from cofair.runs.single import run
    from cofair.storage.export import export_reward as export_reward

__all__ = ["Experiment", "Federation", "Result", "__version__", "federate", "run"]

_HOMES = {
    "Experiment": "cofair.config.experiment",
    "Federation": "cofair.data.federation",
    "Result": "cofair.results.result",
    "federate": "cofair.data.build",
    "run": "cofair.runs.single",
    # what methods of Result do: by these names lower layers reach what is built on them
    "export_reward": "cofair.storage.export",
    "write_report": "cofair.report.page",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `cofair --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cofair' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

"""What history, ledger and checkpoints cost: their share of the time of the demo's runs, measured in one run.

Somebody hears of every tested round, so that each waits for the disk first, as in `cofair compare`.

python -m benchmarks.reliability [METHODS]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cofair import methods
from cofair.config.experiment import Experiment
from cofair.runs.compare import compare
from cofair.storage import ledger
from cofair.storage.folder import AppendOnly
from cofair.storage.journal import Journal

spent: dict[str, float] = {}


def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time(), time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began[1]
            spent[f"{name} (CPU)"] = spent.get(f"{name} (CPU)", 0.0) + time.thread_time() - began[0]

    return measured


def main() -> None:
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else methods.names()
    for part in ("tested", "keep"):
        setattr(Journal, part, timed(part, getattr(Journal, part)))
    ledger.digests = timed("digests", ledger.digests)
    AppendOnly.sync = timed("sync", AppendOnly.sync)  # type: ignore[method-assign]
    for every, what in ((None, "by time"), (10, "every 10 rounds"), (1, "every round")):
        spent.clear()
        experiment = Experiment.from_dict({"training": {"rounds": 40}, "run": {"checkpoint_every": every}})
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            comparison = compare(experiment, names, 1, Path(folder) / "out", listener=lambda *_: None)
            cpu = time.process_time() - began
        seconds = sum(outcome.seconds for outcome in comparison.outcomes)
        shares = {
            name: 100 * value / (cpu if name.endswith("(CPU)") else seconds) for name, value in sorted(spent.items())
        }
        told = ", ".join(f"{name} {share:.2f} %" for name, share in shares.items())
        print(f"checkpoints {what}: {seconds:.1f} s of rounds; {told}", flush=True)


if __name__ == "__main__":
    main()

"""Peak memory of a run, and how it grows with the number of clients.

python -m benchmarks.memory                  # MLP on random images: 50, 100, 200 clients
python -m benchmarks.memory --data cifar10   # a federation of 10 clients on real data (cofair data get cifar10)
"""

import argparse
import json
import resource
import subprocess
import sys


def peak(*arguments: str) -> float:
    """Return the peak resident memory, in MiB, of this module run with other arguments."""
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(answer)["peak"])


def run_clients(clients: int) -> None:
    import torch

    from benchmarks.training import problem, trainer
    from cofair.engine.vectorised import VectorisedEngine

    own = problem("mlp", clients, torch.device("cpu"))
    trainer(VectorisedEngine(own), own, 2)()


def run_data(data: str) -> None:
    from cofair.config.experiment import Experiment
    from cofair.runs.single import run_experiment

    tables = {"federation": {"data": data}, "training": {"rounds": 1}, "contribution": {"epochs": 1}}
    run_experiment(Experiment.from_dict(tables))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--child", choices=["clients", "data"], help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        if given.child == "data":
            run_data(given.data)
        elif given.clients:
            run_clients(given.clients)
        else:
            import torch  # noqa: F401, what every process starts with

            import cofair.runs.single  # noqa: F401
        print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    elif given.data:
        size = peak("--child", "data", "--data", given.data)
        print(f"{given.data}, scene pow, 10 clients, one round of fedavg and its test: {size / 1024:.2f} GiB at most")
    else:
        base = peak("--child", "clients")
        sizes = {clients: peak("--child", "clients", "--clients", str(clients)) for clients in (50, 100, 200)}
        rows = ", ".join(f"{clients} clients {size - base:.0f} MiB" for clients, size in sizes.items())
        ratio = (sizes[200] - sizes[100]) / (sizes[100] - sizes[50])
        print(f"above {base:.0f} MiB of libraries: {rows}; {ratio:.2f} × for twice the step (2 is linear)")


if __name__ == "__main__":
    main()

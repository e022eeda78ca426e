"""What the proxy adds to a round of the demonstration: the same calls through it and past it, in turn.

    python -m benchmarks.proxy [--clients 4] [--rounds 3]

A real federation runs a few rounds; the proxy's log says how many calls each participant makes in one. Then calls are
timed against the same SuperLink, through nginx as a participant makes them and directly on loopback: one that asks for
work, and the same with 60 kB. What the proxy adds to a round is the difference for all calls of one participant.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from benchmarks.measure import alternate
from cofair.flower.deploy.app import demonstration
from cofair.flower.deploy.demo import SERVER_DATA, is_over, write_data
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.flower.deploy.participant import Participant
from cofair.flower.deploy.supernode import client_of
from cofair.storage.history import read_history

REPEATS, SECONDS = 200, 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    chosen = demonstration(given.rounds, given.clients, "fedrac", 0)
    with tempfile.TemporaryDirectory(prefix="cofair-") as temporary:
        folder = Path(temporary)
        names = [str(k) for k in range(given.clients)]
        with LocalFederation(folder, chosen, names) as federation:
            federation.start_superlink()
            write_data(federation, chosen)
            federation.write_server_settings(clients=len(names), data=SERVER_DATA, out=str(folder / "run"))
            for name in names:
                federation.admit(name)
                federation.start_node(name)
            federation.run()
            _wait(folder / "run")
            seconds, calls = _rounds(folder / "run"), _calls(federation)
            added = _added(federation)
    share = calls * max(added.values()) / seconds
    print(f"a round takes {seconds:.1f} s and {calls:.0f} calls of each participant")
    print("the proxy adds " + ", ".join(f"{1000 * value:.2f} ms to {what}" for what, value in added.items()))
    print(f"so it adds at most {100 * share:.2f} % to a round")


def _wait(out: Path) -> None:
    until = time.monotonic() + SECONDS
    while not is_over(out):
        if time.monotonic() > until:
            raise SystemExit("The federation did not finish in time.")
        time.sleep(0.3)


def _rounds(out: Path) -> float:
    """Return the median seconds of a round."""
    ends = [record.seconds for record in read_history(out / "history.jsonl")]
    return statistics.median(later - earlier for earlier, later in zip([0.0, *ends], ends, strict=False))


def _calls(federation: LocalFederation) -> float:
    """Return how many calls with parts of a message each participant makes in a round; its log leaves others out."""
    lines = (federation.organiser.folder / "proxy" / "access.log").read_text(encoding="utf-8").splitlines()
    own = [line for line in lines if ' "0" ' in line]
    trainings = sum("/push-messages" in line for line in own)
    return len(own) / max(trainings, 1)


def _added(federation: LocalFederation) -> dict[str, float]:
    """Return the seconds that the proxy adds to calls, by what they do."""
    own = Participant(federation.participant("0"))
    key = serialization.load_pem_private_key((own.folder / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    options: dict[str, Any] = {
        "insecure": False,
        "interceptors": [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
        "root_certificates": (own.folder / "ca.crt").read_bytes(),
    }
    through = client_of(own).from_server_address(f"127.0.0.1:{federation.port}", **options)
    past = FleetHttpClient.from_server_address(f"127.0.0.1:{federation.organiser.settings.inner_port}", **options)
    number = int((federation.organiser.folder / "participants" / "0.node").read_text(encoding="ascii"))
    node = Node(node_id=number)
    added = {}
    for what, padding in (("a call that asks for work", 0), ("one that carries 60 kB", 60)):
        request = PullMessagesRequest(node=node, message_ids=["x" * 1000] * padding)
        times = alternate(
            {
                "through": lambda request=request: FleetHttpClient.PullMessages(through, request),  # type: ignore[misc]
                "past": lambda request=request: past.PullMessages(request),  # type: ignore[misc]
            },
            REPEATS,
            torch.device("cpu"),
        )
        added[what] = times["through"] - times["past"]
    return added


if __name__ == "__main__":
    main()

"""`cofair deploy`: a federation on this machine, and what an organiser and participants need on theirs."""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cofair.errors import RunError, UsageError

if TYPE_CHECKING:
    from cofair.flower.deploy.demo import DemoResult

REPORT = Path("deploy-demo.html")
OrganisersFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The organiser's folder.")]

app = typer.Typer(
    help="Real federations on Flower: a demonstration here, and what other machines need.",
    no_args_is_help=True,
)


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    clients: Annotated[int, typer.Option(min=2, help="Number of SuperNodes.")] = 4,
    method: Annotated[str, typer.Option(help="Method; see 'cofair methods'.")] = "fedrac",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    seconds: Annotated[float, typer.Option(min=1, help="Give up after so many seconds.")] = 900,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep the run folder, the report and the logs there.")
    ] = None,
) -> None:
    """Run a real federation on this machine, guarded as between machines, and compare it with its simulation."""
    _need_flower()
    from cofair.cli import report_command
    from cofair.flower.deploy import proxy
    from cofair.flower.deploy.app import demonstration
    from cofair.flower.deploy.demo import TOLERANCE, demonstrate

    proxy.program()  # reports what is missing before anything is started
    if out is not None and out.exists():
        raise UsageError(f"{out} exists already: name another folder.")
    chosen = demonstration(rounds, clients, method, seed)
    with tempfile.TemporaryDirectory(prefix="cofair-") as temporary, _ended_by_sigterm():
        folder = Path(temporary)
        try:
            deployed = demonstrate(folder, chosen, seconds, lambda text: print(f"· {text}", flush=True))
        except RunError as error:
            where = "--out DIR keeps the logs" if out is None else f"the logs are in {out / 'logs'}"
            raise RunError(f"{error} ({where})") from None
        finally:
            if out is not None:
                _keep(folder, out)
        report = report_command.after_run([folder / "run"], REPORT if out is None else out / "report.html")
    _print(deployed)
    print(report if out is None else f"Written: {out}\n{report}")
    if deployed.difference > TOLERANCE:
        raise RunError(f"Federation and simulation differ by {deployed.difference:g}.")


def _print(deployed: "DemoResult") -> None:
    from cofair.cli.console import new_table, output, print_table

    simulated, last, before = deployed.simulated, deployed.history[-1], deployed.simulated.history[-1]
    print(f"\n{simulated.method} after round {last.round}: the federation, and its simulation in brackets\n")
    table = new_table()
    for column in ("client", "samples", "contribution %", "reputation", "accuracy %", "kB down", "kB up"):
        table.add_column(column, justify="right")
    for i, name in enumerate(simulated.names):
        table.add_row(
            name,
            str(simulated.sizes[i]),
            _both(100 * deployed.contributions[i], 100 * simulated.contributions[i]),
            "" if last.reputation is None else _both(last.reputation[i], (before.reputation or [])[i]),
            _both(100 * last.accuracies[i], 100 * before.accuracies[i]),
            *[f"{int(deployed.traffic[i][way]) / 1000:.0f}" for way in ("bytes_down", "bytes_up")],
        )
    print_table(output(), table)
    print(f"Largest difference between the two, over all rounds: {deployed.difference:.2g}")
    print(f"{deployed.seconds:.0f} s with all processes; every one of them is gone.")
    if any(accuracy < brought for accuracy, brought in zip(last.accuracies, deployed.contributions, strict=True)):
        print(f"{last.round} rounds are a beginning: rewards below what clients reach alone grow with --rounds.")


def _both(one: float, other: float) -> str:
    return f"{one:.2f} ({other:.2f})"


def _keep(folder: Path, out: Path) -> None:
    """Keep what people look at, and no keys."""
    out.mkdir(parents=True)
    for kept in (folder / "run", folder / "logs", folder / "federation" / "organiser" / "app"):
        if kept.exists():
            shutil.copytree(kept, out / kept.name)


@app.command()
def asks(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment's settings.")],
) -> None:
    """Say what an experiment asks of a participant besides its update."""
    _need_flower()
    from cofair.config.experiment import Experiment
    from cofair.flower.ask_texts import ASK_TEXTS
    from cofair.flower.asks import asked_by

    for name in asked_by(Experiment.from_file(experiment)):
        print(f"{name}: {ASK_TEXTS[name]}")


@app.command()
def key(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The participant's folder.")] = Path(),
) -> None:
    """Make a participant's key, which never leaves this machine, and a request for its certificate."""
    _need_flower()
    from cofair.flower.deploy import keys
    from cofair.flower.deploy.participant import Participant

    name = Participant(folder).settings.name
    with keys.private():
        keys.node_key(folder)
    print(f"Written: {folder / 'node.key'} (keep it) and {folder / 'node.csr'} (send it to the organiser).")
    print(f"Fingerprint of {name}: {keys.fingerprint(keys.read_request(folder / 'node.csr'))}")


@app.command()
def admit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The participant's name.")],
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="Its node.csr.")],
    folder: OrganisersFolder = Path(),
) -> None:
    """Admit a participant: issue its certificate, register its key, and tell the proxy."""
    _need_flower()
    from cofair.flower.deploy import keys
    from cofair.flower.deploy.organiser import Organiser

    with keys.private():
        fingerprint = Organiser(folder).admit(name, request)
    print(f"Fingerprint of {name}: {fingerprint}  (is it what the participant reads to you?)")
    print(f"Written: {folder / 'participants' / name}.crt (send it to the participant, as its node.crt).")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The participant's name.")],
    folder: OrganisersFolder = Path(),
) -> None:
    """Remove a participant: nothing that it sends is let through any more."""
    _need_flower()
    from cofair.flower.deploy import keys
    from cofair.flower.deploy.organiser import Organiser

    with keys.private():
        Organiser(folder).remove(name)
    print(f"Removed: {name}")


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that 'cofair deploy init' has written.")],
) -> None:
    """Write the organiser's app, as it is now, and its hash into every participant's folder."""
    _need_flower()
    from cofair.flower.deploy import folders, keys

    with keys.private():
        print(f"The app that participants agree to has the SHA-256 {folders.pack(folder)}")


@app.command()
def superlink(folder: OrganisersFolder = Path()) -> None:
    """Run the organiser's server: the SuperLink on loopback, and the proxy that participants connect to."""
    _need_flower()
    from cofair.flower.deploy.superlink import serve

    serve(folder)


@app.command()
def node(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The participant's folder.")] = Path(),
) -> None:
    """Run a participant's SuperNode, which starts only the apps that its settings name."""
    _need_flower()
    from cofair.flower.deploy.supernode import run

    run(folder)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    experiment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The experiment.", show_default="fedrac, as in the demo")
    ] = None,
    participants: Annotated[str, typer.Option(help="Names, separated by commas.")] = "a,b,c,d",
    host: Annotated[str, typer.Option(help="Name or address under which participants reach the server.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server.")] = 8443,
) -> None:
    """Write what an organiser and each participant need on machines of their own."""
    _need_flower()
    from cofair.config.experiment import Experiment
    from cofair.flower.deploy.folders import write_folders

    names = [name.strip() for name in participants.split(",") if name.strip()]
    chosen = None if experiment is None else Experiment.from_file(experiment)
    print(write_folders(folder, chosen, names, host, port))


def _need_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise UsageError("This needs Flower: pip install 'cofair[flower]'.") from None


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

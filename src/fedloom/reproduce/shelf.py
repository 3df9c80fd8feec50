"""Where tables of experiments are found: a file, the working folder's experiments/, or those that ship with fedloom."""

from __future__ import annotations

from pathlib import Path

import fedloom
from fedloom.errors import ConfigError
from fedloom.experiment.words import hint

FOLDER, RESULTS = "experiments", "results"


def known() -> dict[str, Path]:
    """The file of every table that has a name; one in the working folder hides its namesake that ships."""
    found = [path for folder in (shipped(), Path(FOLDER)) for path in folder.glob("*.toml")]
    return dict(sorted((path.stem, path) for path in found))


def programs() -> dict[str, Path]:
    """The programs that ship beside the tables, for what no table can hold."""
    return {path.stem: path for path in sorted(shipped().glob("*.py"))}


def find(name: str) -> Path:
    """The file of a table, by its name or its path."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    files = known()
    if name not in files:
        raise ConfigError(f"there is no table of experiments {name!r}; {hint(name, [*files, *programs()])}")
    return files[name]


def called(file: Path) -> str | Path:
    """What ``find`` finds the file of a table by: its name or, for one that lies elsewhere, its path."""
    return file.stem if known().get(file.stem) == file else file


def shipped() -> Path:
    """The folder that ships with fedloom: in the package, or in a repository beside its sources."""
    package = Path(fedloom.__file__).parent
    inside = package / FOLDER
    return inside if inside.is_dir() else package.parents[1] / FOLDER


def recorded(file: Path) -> Path:
    """Where the result of a table is kept."""
    return file.parent / RESULTS / f"{file.stem}.json"

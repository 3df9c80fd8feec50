"""The files that a user means: one, several, those of a folder, those that fit a pattern."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from fedloom.data.arrays import some
from fedloom.data.reading import is_csv
from fedloom.errors import ConfigError, DataError

Paths = str | Path | Sequence[str | Path]
_SIGNS = "*?["


def is_pattern(text: str) -> bool:
    """Whether it stands for all files that fit it, and is none itself."""
    return any(sign in text for sign in _SIGNS) and not Path(text).exists()


def is_table(path: Path) -> bool:
    """Whether a file can be read as a table, as its name says."""
    return is_csv(path) or path.suffix in (".parquet", ".pq", ".npz")


def is_columns(paths: Paths) -> bool:
    """Whether they are tables with columns of cells, and no arrays."""
    return found_files(paths)[0][0].suffix != ".npz"


def stem(path: Path) -> str:
    """What a file is called without its ending: that of north.csv.gz is north."""
    return Path(path.stem).stem if is_csv(path) and path.suffix != ".csv" else path.stem


def found_files(paths: Paths) -> tuple[list[Path], list[str]]:
    """The files, those of a folder or a pattern sorted by name, and what of a folder is not read."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise ConfigError("no file is named; give at least one path")
    files, notes = list[Path](), list[str]()
    for one in given:
        path = Path(one)
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
            tables = [entry for entry in inside if entry.is_file() and is_table(entry)]
            others = [entry.name for entry in inside if entry not in tables]
            if not tables:
                raise DataError(f"{path} has no .csv, .parquet or .npz file; give a folder with a file for each client")
            if others:
                notes.append(f"not read in {path.name}: {some(others)}")
            files += tables
        elif is_pattern(str(one)):
            fit = sorted(Path(name) for name in glob.glob(str(one), recursive=True) if Path(name).is_file())
            if not fit:
                raise DataError(f"no file fits {str(one)!r}; check the path")
            files += fit
        else:
            files.append(path)
    twice = next((file for file in files if files.count(file) > 1), None) if len(set(files)) < len(files) else None
    if twice is not None:
        raise ConfigError(f"{twice} is named twice; name it once")
    kinds = {file.suffix == ".npz" for file in files}
    if len(kinds) > 1:
        odd = next(file for file in files if file.suffix == ".npz")
        raise DataError(f"{odd} is an .npz file beside tables; give files of one kind")
    return files, notes


def common_name(paths: Paths) -> str:
    """What to call a table that is read from there: as its file, its folder, or the folder of several files."""
    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if len(given) == 1 and not is_pattern(str(given[0])):
        return (given[0].resolve().name if given[0].is_dir() else given[0].stem) or "files"
    parents = {path.resolve().parent for path in given}
    name = next(iter(parents)).name if len(parents) == 1 else ""
    return "files" if not name or any(sign in name for sign in _SIGNS) else name


def named_by_file(files: Sequence[Path]) -> list[str]:
    """A client for each file, called as the file is."""
    names = [stem(file) for file in files]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(
                f"{files[names.index(name)]} and {files[place]} would both be the client {name!r}; give one of them "
                "another name, or say which column names the client (client_column)"
            )
    return names

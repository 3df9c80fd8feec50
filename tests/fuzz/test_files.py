"""Any data file: it is refused in words, or it becomes a table that holds what tables must."""

from __future__ import annotations

import gzip
import io
import struct
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from harness import STRANGE, flipped, fuzz, little_memory

from fedloom.data import federate, load_file

ROWS = 40
DTYPES = ["<f4", ">f8", "<f2", "<i8", "<u8", "|b1", "<U5", "|S3", "<M8[s]", "<c8", "|V4", "<U0", "|O", "<f16"]


def frame(random: Random) -> pd.DataFrame:
    """A table with a client, a time, features and labels, some cells of which are strange."""
    columns: dict[str, list[Any]] = {
        "who": [f"c{k % 4}" for k in range(ROWS)],
        "when": [f"2020-01-{1 + k % 28:02}" for k in range(ROWS)],
        "a": [k / 7 for k in range(ROWS)],
        "b": list(range(ROWS)),
        "ward": [["er", "icu", None][k % 3] for k in range(ROWS)],
        "town": [f"t{k}" for k in range(ROWS)],
        "came": [None if k % 9 == 0 else f"2021-03-{1 + k % 28:02}T0{k % 9}:00" for k in range(ROWS)],
        "smokes": [[True, False, None][k % 3] for k in range(ROWS)],
        "y": [k % 3 for k in range(ROWS)],
    }
    for _ in range(random.choice([0, 0, 1, 2])):
        column = random.choice(list(columns))
        for _ in range(random.choice([1, 1, ROWS])):
            columns[column][random.randrange(ROWS)] = random.choice(
                [v for v in STRANGE if not isinstance(v, dict | list)]
            )
    made = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    with suppress(UnicodeEncodeError):  # a lone surrogate stays an object
        return made.infer_objects()
    return made


def csv(random: Random) -> bytes:
    text = frame(random).to_csv(index=False).encode(errors="surrogatepass")
    kind = random.randrange(6)
    if kind == 0:
        text = text.replace(b",", random.choice([b";", b"\t", b",,", b'",', b",\0"]), random.randrange(1, 30))
    elif kind == 1:
        text = text.partition(b"\n")[2]
    elif kind == 2:
        text = random.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n\n", b'"' * 999, b"," * 200_000 + b"\n"]) + text
    elif kind == 3:
        text += random.choice([b"1,2\n", b"9" * 5000 + b",1,1,1,1\n", b'"\n', b",,,,,,,,,\n" * 50])
    return text


def npy(random: Random, values: Any) -> bytes:
    """An array as a member; its header may say something else than what follows."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(values), allow_pickle=True)
    data = file.getvalue()
    if random.random() < 0.4:
        shape = random.choice(
            ["(10**12,)", "(1000000000000, 1000000000000)", "(-1, 3)", "(40, 0)", "()", "(2**70,)", "((" * 90, "[40]"]
        )
        header = f"{{'descr': {random.choice(DTYPES)!r}, 'fortran_order': False, 'shape': {shape}}}".encode() + b"\n"
        data = b"\x93NUMPY" + bytes(random.choice([(1, 0), (2, 0), (3, 0), (9, 9)]))
        data += struct.pack("<H" if random.random() < 0.7 else "<I", len(header)) + header + b"\0" * 500
    return data


def npz(random: Random) -> bytes:
    x: Any = np.arange(ROWS * 3.0).reshape(ROWS, 3)
    arrays: dict[str, Any] = {"x": x, "y": np.arange(ROWS) % 3, "clients": np.arange(ROWS) % 4}
    for _ in range(random.choice([0, 1, 2])):
        name = random.choice([*arrays, "extra"])
        odd = [
            np.zeros((ROWS, 2)),
            np.zeros(3),
            np.float64(1),
            np.full(ROWS, np.nan),
            np.array([["a"]]),
            np.zeros((0, 3)),
        ]
        odd += [np.full(ROWS, 1e300), np.full(ROWS, np.inf), np.array([{}]), np.zeros(ROWS, "V4"), np.arange(ROWS) + 1j]
        odd += [np.zeros((ROWS, 1, 4, 4)), np.zeros(ROWS, "M8[s]"), np.arange(ROWS).astype(str), x.astype(">f8")]
        arrays[name] = random.choice(odd)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name, values in arrays.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr(f"{name}{random.choice(['.npy'] * 9 + ['', '.txt'])}", npy(random, values))
        if random.random() < 0.1:
            archive.writestr("bomb.npy", b"\0" * 30_000_000)
    data = bytearray(file.getvalue())
    if random.random() < 0.1:  # encrypted, as the directory says
        at = data.rfind(b"PK\x01\x02")
        data[at + 8] |= 1
    return bytes(data)


def parquet(random: Random) -> bytes:
    file = io.BytesIO()
    made = frame(random)
    if random.random() < 0.2:
        made["nested"] = [[1, 2]] * ROWS
    made = made if random.random() < 0.9 else made.set_index("who")
    try:
        made.to_parquet(file)
    except Exception:  # what Parquet cannot hold is no case
        file = io.BytesIO()
        cells = {name: [str(cell).encode(errors="replace").decode() for cell in made[name]] for name in made}
        pd.DataFrame(cells).to_parquet(file)
    return file.getvalue()


KINDS = {".csv": csv, ".csv.gz": lambda random: gzip.compress(csv(random)), ".npz": npz, ".parquet": parquet}


CHOICES: list[dict[str, Any]] = [
    {"missing": "indicator"},
    {"missing": "error"},
    {"dates": "parts"},
    {"dates": "drop", "embed_from": 1},
    {"drop": ["a", "b"]},
    {"numbers": ["ward", "a"]},
    {"categories": ["a", "town"]},
    {"categories": {"ward": ["er", "icu"]}},
    {"window": 3, "stride": 2},
    {"window": 2, "horizon": 0, "timestamp_column": "when"},
]


def attempt(folder: Path, random: Random) -> str:
    ending, make = random.choice(list(KINDS.items()))
    data = make(random)
    if random.random() < 0.5:
        data = flipped(data, random)
    if random.random() < 0.05:
        ending = random.choice([*KINDS, ".csv.bz2", ".csv.xz", ".json", ""])
    path = folder / f"data{ending}"
    path.write_bytes(data)
    options: dict[str, Any] = {} if ending == ".npz" else {"client_column": "who", "label_column": "y"}
    if random.random() < 0.3 and ending != ".npz":
        options["timestamp_column"] = "when"
    if random.random() < 0.3:
        options |= {"task": random.choice(["classification", "binary", "multilabel", "regression"])}
    if random.random() < 0.3:
        options |= {"scaling": random.choice(["none", "standard", "min-max"])}
    if random.random() < 0.5 and ending != ".npz":
        options |= random.choice(CHOICES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        many = [path, folder / f"twin{ending}"] if random.random() < 0.2 and "client_column" in options else path
        if isinstance(many, list):
            many[1].write_bytes(make(random))
        table = load_file(many, **options).check()
        federate(table, clients=None if table.groups is not None else 3, allow_empty=True)
    return "read"


def test_any_file_is_refused_in_words_or_read(tmp_path: Path) -> None:
    with little_memory():
        fuzz("data files", 150, lambda random: attempt(tmp_path, random))

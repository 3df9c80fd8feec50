"""Pages of the documentation as a reader follows them: block after block, in one folder and one namespace.

What a fenced block is, its first line says:

* ``python``: runs; a ``text`` block right after it is what it prints (numbers to 5 %)
* ``python`` that begins with ``# src/…``: an excerpt of that file
* any block with ``title="NAME"``: a file of that name, for the blocks after it
* ``console``: the lines with ``$`` run, and the words of the other lines appear in what they print
* ``bash``: the ``fedloom`` commands are possible, but too long to run here
* ``toml``: an experiment that is possible
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import shlex
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from fedloom.cli import app
from fedloom.cli.flags import FLAGS, overrides
from fedloom.comparison import Comparison, FromSettings, parse_entry, parse_sweep, swept
from fedloom.comparison.repeats import Repeat
from fedloom.experiment import Settings, load_experiment

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[\w-]*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, what it is, what it says."""

    page: Path
    line: int
    """The line of the page above its first one."""
    kind: str
    title: str | None
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def excerpt(self) -> Path | None:
        """The source file that this is an excerpt of."""
        first = self.text.partition("\n")[0]
        return ROOT / first.removeprefix("# ") if first.startswith("# src/") else None

    def commands(self) -> Iterator[tuple[list[str], str]]:
        """The words of each fedloom command, and what the page says that it prints."""
        prompt = "$ " if self.kind == "console" else ""
        lines = self.text.replace("\\\n", " ").splitlines()
        starts = [i for i, line in enumerate(lines) if line.startswith(prompt) and line.strip()]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            words = shlex.split(lines[start].removeprefix(prompt), comments=True)
            if "fedloom" in words:
                yield words[words.index("fedloom") + 1 :], "\n".join(lines[start + 1 : end])


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    opened: tuple[re.Match[str], int] | None = None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened = fence, number
        elif opened is not None and line.strip() == "```":
            (start, at), opened = opened, None
            text = "\n".join(inner.removeprefix(start["indent"]) for inner in lines[at : number - 1])
            title = _TITLE.search(start["rest"])
            found.append(Block(page, at, start["kind"], title and title[1], text))
    assert opened is None, f"{page}:{opened[1]}: this block has no end"
    return found


@dataclass
class Reader:
    """Somebody who follows a page in an empty folder."""

    folder: Path
    module: types.ModuleType = field(default_factory=lambda: types.ModuleType("page"))

    def follow(self, page: Path) -> None:
        """Do what every block says."""
        found = blocks(page)
        for block, after in zip(found, [*found[1:], None], strict=True):
            if block.title is not None:
                (self.folder / block.title).write_text(block.text + "\n", encoding="utf-8")
            elif block.excerpt is not None:
                check_excerpt(block)
            elif block.kind == "python":
                said = self.run(block)
                if after is not None and after.kind == "text" and after.title is None:
                    check_output(after, said)
            elif block.kind == "console":
                self.type(block)
            elif block.kind == "bash":
                for words, _ in block.commands():
                    check_command(block, words)
            elif block.kind == "toml":
                (self.folder / "page.toml").write_text(block.text, encoding="utf-8")
                load_experiment(self.folder / "page.toml")

    def run(self, block: Block) -> str:
        """What a block of Python prints; an error is one in the line of the page."""
        code = compile("\n" * block.line + block.text, str(block.page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.module.__dict__)
        return printed.getvalue()

    def type(self, block: Block) -> None:
        """Run the commands of a block, and compare."""
        for words, shown in block.commands():
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, f"{block.place}: fedloom {shlex.join(words)}: {result.output}"
            missing = [word for word in _WORD.findall(shown) if word not in result.output]
            assert not missing, f"{block.place}: fedloom {shlex.join(words)} does not say {missing}:\n{result.output}"


def check_excerpt(block: Block) -> None:
    """Every line is in the file, in this order; "…" stands for lines left out."""
    assert block.excerpt is not None
    rest = iter(block.excerpt.read_text(encoding="utf-8").splitlines())
    for line in block.text.splitlines()[1:]:
        if line.strip() not in ("", "…", "# …"):
            assert line in rest, f"{block.place}: not (or not there) in the file: {line}"


def check_output(block: Block, said: str) -> None:
    """The same words, and numbers that agree to 5 %."""
    shown, real = block.text.split(), said.split()
    assert len(shown) == len(real), f"{block.place}: it prints\n{said}"
    for one, other in zip(shown, real, strict=True):
        assert one == other or _close(one, other), f"{block.place}: {one!r} is {other!r} in\n{said}"


def _close(one: str, other: str) -> bool:
    try:
        a, b = (float(text.strip("[](),:%").replace(",", "")) for text in (one, other))
    except ValueError:
        return False
    return math.isclose(a, b, rel_tol=0.05, abs_tol=1e-9)


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and its parameters, or typer's error."""
    command: Any = typer.main.get_command(app)
    path: list[str] = []
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"there is no command {' '.join([*path, name])!r}"
        command = command.commands[name]
        path.append(name)
    given = command.make_context(path[-1], words).params
    return " ".join(path), {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}


def check_command(block: Block, words: list[str]) -> None:
    """The command and all of its settings are possible."""
    command, given = parsed(words)
    flags = [(flag, given[flag.parameter]) for flag in FLAGS if given.get(flag.parameter) not in (None, [], ())]
    changes = overrides(flags, given.get("sets"))
    try:
        file = given.get("file") or given.get("config")
        path = None if file is None else Path(file)
        if command in ("run", "data describe") and (path is None or path.exists()):
            load_experiment(path, changes)
        elif command == "compare":
            sweep = dict(map(parse_sweep, given.get("sweep") or []))
            entries = swept([parse_entry(text) for text in given["methods"]], sweep)
            comparison = Comparison(FromSettings(Settings.read(path, changes)), entries, [0])
            for entry in entries:
                comparison.experiment(entry, Repeat(0))
    except Exception as error:
        raise AssertionError(f"{block.place}: fedloom {shlex.join(words)}: {error}") from error

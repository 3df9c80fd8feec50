"""The table as a file for a paper or a program: LaTeX, CSV or Markdown, by the end of the file's name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from fedloom.errors import ConfigError
from fedloom.report.groups import Group, Target
from fedloom.report.html import write_page
from fedloom.report.table import Cell, Results, rows

KINDS = (".tex", ".csv", ".md")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    letter: f"\\{letter}" for letter in "&%$#_{}"
}
_SIGNS = {"±": r"$\pm$", "²": r"$^2$", "≥": r"$\geq$", "≤": r"$\leq$", "–": "--", "−": "$-$", "<": "$<$", ">": "$>$"}


def write_table(groups: Sequence[Group], path: str | Path, target: Target | None = None) -> Path:
    """Write the table of these groups; CSV has all numbers in full, the others what people read, the best marked."""
    file = Path(path)
    check_kind(file)
    text = {".tex": latex, ".csv": comma_separated, ".md": markdown}[file.suffix](groups, target)
    write_page(file, text)
    return file


def check_kind(file: Path) -> None:
    """A ConfigError that says what a table can be."""
    if file.suffix not in KINDS:
        raise ConfigError(f"{file}: a table ends in {', '.join(KINDS[:-1])} or {KINDS[-1]}; choose one of these")


def comma_separated(groups: Sequence[Group], target: Target | None = None) -> str:
    """A row for each method: for each quantity its mean and, as NAME_std_over_runs, its spread."""
    found, out = rows(groups, target), io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in found for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue()


def markdown(groups: Sequence[Group], target: Target | None = None) -> str:
    """A table of Markdown's."""
    shown, kept = _shown(groups, target)
    titles = ["Method", *(shown.columns[at].full_title for at in kept)]
    lines = [titles, ["---", *["---:"] * len(kept)]]
    lines += [[group.label, *(_marked(cells[at], "**", "**") for at in kept)] for group, cells in shown.lines]
    return "".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |\n" for line in lines)


def latex(groups: Sequence[Group], target: Target | None = None) -> str:
    """A tabular with the lines of booktabs."""
    shown, kept = _shown(groups, target)
    titles = ["Method", *(escaped(shown.columns[at].full_title) for at in kept)]
    body = [
        " & ".join([escaped(group.label), *(_marked(cells[at], r"\textbf{", "}", escaped) for at in kept)])
        for group, cells in shown.lines
    ]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            rf"\begin{{tabular}}{{l{'r' * len(kept)}}}",
            r"\toprule",
            " & ".join(titles) + r" \\",
            r"\midrule",
            *(line + r" \\" for line in body),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """A text as LaTeX prints it."""
    return "".join(_LATEX.get(letter, _SIGNS.get(letter, letter)) for letter in text)


def _shown(groups: Sequence[Group], target: Target | None) -> tuple[Results, list[int]]:
    """The table, and which of its columns a paper wants: quality, clients, the way to a target."""
    shown = Results.of(groups, target, gains=True)
    return shown, [at for at, column in enumerate(shown.columns) if column.heading != "cost"]


def _marked(cell: Cell, begin: str, end: str, write: Callable[[str], str] = str) -> str:
    said = write(cell.text)
    return f"{begin}{said}{end}" if cell.best else said

"""Packages import only what is below them."""

from __future__ import annotations

import ast
from pathlib import Path

import fedloom

ROOT = Path(fedloom.__file__).parent
BASE = {"errors", "types", "fields", "trust", "register", "capacity", "search", "__version__"}
FEDERATION = BASE | {"federation"}
BELOW = {
    "federation": BASE,
    "methods": FEDERATION,
    "channel": FEDERATION,
    "data": FEDERATION,
    "storage": FEDERATION,
    "execution": FEDERATION | {"channel", "methods", "storage"},
    "prediction": FEDERATION | {"channel", "methods", "data", "storage"},
    "engine": FEDERATION | {"channel", "methods", "data", "storage", "execution", "prediction", "report"},
    "report": {"errors", "storage"},
}
ENGINE = BELOW["engine"] | {"engine"}
BELOW |= {"conformance": ENGINE, "experiment": ENGINE}
ABOVE = ENGINE | {"experiment"}
BELOW |= {"comparison": ABOVE, "reproduce": ABOVE, "deploy": ABOVE}
BELOW |= {"tuning": ABOVE | {"comparison"}}
BELOW |= {"cli": ABOVE | {"comparison", "reproduce", "deploy", "tuning", "conformance"}}


def imported(path: Path) -> set[str]:
    """The parts of fedloom that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"fedloom.{alias.name}" for alias in node.names] if node.module == "fedloom" else [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fedloom.")}
    return found


def test_every_package_is_placed() -> None:
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(BELOW)


def test_packages_import_only_what_is_below_them() -> None:
    wrong = []
    for package, below in BELOW.items():
        for path in sorted((ROOT / package).rglob("*.py")):
            above = imported(path) - below - {package}
            if package == "methods":
                above -= {"conformance"}  # of a method's known answers: see the next test
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in sorted(above)]
    assert wrong == []


def test_methods_import_the_kit_only_where_they_declare_what_is_known_of_them() -> None:
    for path in sorted((ROOT / "methods").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            inside = isinstance(node, ast.FunctionDef)
            if not checked and not inside:
                assert "fedloom.conformance import" not in ast.unparse(node), f"{path.name}, line {node.lineno}"

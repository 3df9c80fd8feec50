"""Every promise has a test, and every test that a promise names exists."""

from __future__ import annotations

import ast
import re

from doc_pages import ROOT

PAGE = ROOT / "docs/explanation/promises.md"
_PROMISE = re.compile(r"^\* \*\*.*?(?=^\* \*\*|^\n|\Z)", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def promises() -> list[str]:
    return _PROMISE.findall(PAGE.read_text(encoding="utf-8"))


def test_every_promise_names_a_test() -> None:
    assert len(promises()) > 20
    assert not [promise for promise in promises() if not _TEST.search(promise)]


def test_every_test_that_a_promise_names_exists() -> None:
    for file, name in _TEST.findall(PAGE.read_text(encoding="utf-8")):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def test_nothing_else_on_the_page_looks_like_a_test() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("::test_") == len(_TEST.findall(text))

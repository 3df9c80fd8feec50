"""Every example of the README and of the documentation does what the page says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, Reader, blocks

LIVE = ("python", "console", "bash", "toml")
WITH_EXAMPLES = [page for page in PAGES if any(block.kind in LIVE for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_reader_who_follows_the_page_gets_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    reader = Reader(tmp_path)
    monkeypatch.setitem(sys.modules, "page", reader.module)
    reader.follow(page)

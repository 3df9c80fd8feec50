"""What mkdocs does beside building: docstrings are plain text with a few Sphinx roles, which Markdown does not know."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:func|class|attr|meth|mod):<code>~?([^<]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Show ``:func:`fedloom.data.load``` as ``load``."""
    return _ROLE.sub(lambda role: f"<code>{role[1].rpartition('.')[2]}</code>", html)

"""What mkdocs does beside building: the methods' pages are put into the navigation as the register has them.

Docstrings are plain text with a few Sphinx roles, which Markdown does not know.
"""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:func|class|attr|meth|mod):<code>~?([^<]+)</code>")


def method_pages() -> list[str]:
    """The pages of the methods, in the register's order."""
    from fedloom.methods import REGISTER

    return [f"methods/{entry.name}.md" for entry in REGISTER.shipped()]


def on_config(config: Any, **_: Any) -> Any:
    """Add the methods' pages to the chapter that has their index; a page's heading is its title."""
    for chapter in config.nav:
        if "Methods" in chapter:
            chapter["Methods"] += method_pages()
    return config


def on_page_content(html: str, **_: Any) -> str:
    """Show ``:func:`fedloom.data.load``` as ``load``."""
    return _ROLE.sub(lambda role: f"<code>{role[1].rpartition('.')[2]}</code>", html)

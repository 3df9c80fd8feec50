"""What mkdocs does beside building: the methods' pages are put into the navigation as the register has them, and
formulas, LaTeX in blocks of "math", become MathML, which browsers show without a script.

Docstrings are plain text with a few Sphinx roles, which Markdown does not know.
"""

from __future__ import annotations

import re
from typing import Any

_MATH = re.compile(r"^```math\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
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


def mathml(latex: str) -> str:
    """A formula as browsers show it; one with a word that has no meaning is an error."""
    from latex2mathml.converter import convert

    found = convert(latex, display="block").replace("<mtable>", '<mtable displaystyle="true">')
    if "\\" in found:
        raise ValueError(f"this formula has a command that is not known: {latex}")
    return found


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show formulas as formulas."""
    return _MATH.sub(lambda block: f'<div class="formula">{mathml(block[1])}</div>', markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show ``:func:`fedloom.data.load``` as ``load``."""
    return _ROLE.sub(lambda role: f"<code>{role[1].rpartition('.')[2]}</code>", html)

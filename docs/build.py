"""Build the documentation: bring the generated parts of the pages up to date, then make the site in ``site/``.

    python docs/build.py            # both; needs fedloom[docs]
    python docs/build.py --pages    # only the generated parts
"""

from __future__ import annotations

import os
import sys

from generated import DOCS, fill, pages


def write_pages() -> None:
    """Fill in the generated parts of every page that is not up to date."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = fill(before)
        if after != before:
            page.write_text(after, encoding="utf-8", newline="\n")
            print(f"updated {page.relative_to(DOCS.parent)}")


def build_site() -> None:
    """The site, with every warning an error."""
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # an advertisement of the theme
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(DOCS.parent / "mkdocs.yml"), strict=True))


if __name__ == "__main__":
    write_pages()
    if "--pages" not in sys.argv[1:]:
        build_site()

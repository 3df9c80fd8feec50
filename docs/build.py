"""Build the documentation: bring the generated parts of the pages up to date, then make the site in ``site/``.

python docs/build.py            # both; needs fedloom[docs]
python docs/build.py --pages    # only the generated parts
"""

from __future__ import annotations

import os
import subprocess
import sys

from generated import DOCS, LISTED, PICTURES, fill, listed, pages, pictures

ROOT = DOCS.parent


def write_pages() -> None:
    """Fill in the generated parts of every page, list the methods for type checkers, and draw the pictures anew."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = fill(before)
        if after != before:
            page.write_text(after, encoding="utf-8", newline="\n")
            print(f"updated {page.relative_to(ROOT)}")
    LISTED.write_text(listed(), encoding="utf-8", newline="\n")
    drawn = pictures()
    PICTURES.mkdir(exist_ok=True)
    for old in set(PICTURES.iterdir()) - set(drawn):
        old.unlink()
    for file, picture in drawn.items():
        file.write_text(picture, encoding="utf-8", newline="\n")


def build_site() -> int:
    """The site, with every warning an error; mkdocs' exit code."""
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # which would be an advertisement of the theme's
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=ROOT, env=quiet).returncode


if __name__ == "__main__":
    write_pages()
    if "--pages" not in sys.argv[1:]:
        sys.exit(build_site())

"""Pages from templates: one HTML file with everything it needs, plotly included, that asks the network for nothing.

Only the templates know HTML. They escape every text that they are given; what is not escaped there are the style and
the two scripts, which no run has a say in. A content security policy in the page itself forbids every other script (by
their hashes) and every request, so that neither a library nor a run's name can do otherwise.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import RunError
from fedloom.report import look
from fedloom.report.charts import Chart

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **content: Any) -> str:
    """A template with this content in it."""
    return _environment().get_template(template).render(content)


def render_page(template: str, charts: Iterable[Chart], **content: Any) -> str:
    """A whole page, of a template that extends page.html, with what its script needs to draw the charts."""
    from plotly.offline import get_plotlyjs

    payload = {
        "charts": {chart.key: chart.drawing.payload for chart in charts},
        "palettes": {"light": look.LIGHT, "dark": look.DARK},
        "sequences": look.SEQUENCES,
        "diverging": look.DIVERGING,
    }
    # Browsers hash a script after making its newlines one kind.
    texts = [text.replace("\r\n", "\n").replace("\r", "\n") for text in (get_plotlyjs(), _asset("page.js"))]
    scripts = [{"text": text, "hash": _hash(text)} for text in texts]
    return render(template, payload=payload, scripts=scripts, style=_asset("page.css"), **content)


def write_page(path: Path, text: str) -> None:
    """All or nothing: a reader sees the old page or the new one, also when the disk is full."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        # JSON can hold half a surrogate pair, which no file can.
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise RunError(
            f"{path}: the report cannot be written: {error.strerror}. Free space or choose another --out"
        ) from error


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedloom.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":"), "ensure_ascii": False}
    return environment


def _asset(name: str) -> str:
    return files("fedloom.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

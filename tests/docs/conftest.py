"""What the tests of the documentation share: the pages, and the scripts that write parts of them."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parents[1] / "docs")]  # for ``import doc_pages`` and ``import generated``

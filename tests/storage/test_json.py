"""JSON of anybody's is read up to a depth, however wide it is, and refused in words beyond."""

from __future__ import annotations

import pytest

from fedloom.storage.files import loads


@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-16"])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}"), ('[{"a": ', "}]")])
def test_a_hundred_levels_are_read_and_one_more_is_refused(opening: str, closing: str, encoding: str | None) -> None:
    def nested(levels: int) -> str | bytes:
        times, odd = divmod(levels, 2) if len(closing) == 2 else (levels, 0)
        text = "[" * odd + opening * times + "1" + closing * times + "]" * odd
        return text if encoding is None else text.encode(encoding)

    loads(nested(100))
    with pytest.raises(ValueError, match="nested deeper than 100"):
        loads(nested(101))


def test_many_tables_and_brackets_in_texts_are_no_depth() -> None:
    wide = '{"jobs": [' + ", ".join('[{"a": "[[[{{{"}]' for _ in range(200)) + "]}"
    assert loads(wide) == {"jobs": [[{"a": "[[[{{{"}]] * 200}

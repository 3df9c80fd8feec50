"""Where the keys of a TOML text stand."""

from __future__ import annotations

import tomllib

from fedloom.experiment.lines import key_lines

TEXT = """# an experiment
rounds = 5   # few

[data]
name = "digits"
partition = [
  "classes",   # two steps
  "quantity",
]
"quoted key" = 1
deep.er.key = 2

[[channel]]
name = "quantise"

[[channel]]
name = "other"
[channel.inner]
bits = 3

[method]
note = \"\"\"
lr = 7
[data]
\"\"\"
lr = 0.1
inline = {a = 1, b = {c = 2}}
"""


def line_of(needle: str) -> int:
    return next(number for number, line in enumerate(TEXT.split("\n"), 1) if line.startswith(needle))


def test_every_key_is_found_on_its_line() -> None:
    found = key_lines(TEXT)
    assert found["rounds",] == 2
    assert found["data",] == 4
    assert found["data", "name"] == 5
    assert found["data", "partition"] == 6
    assert found["data", "quoted key"] == line_of('"quoted key"')


def test_dotted_keys_and_inline_tables_are_on_the_line_that_has_them() -> None:
    found = key_lines(TEXT)
    assert found["data", "deep", "er", "key"] == found["data", "deep"] == line_of("deep.er")
    assert found["method", "inline", "b", "c"] == line_of("inline")


def test_arrays_of_tables_are_counted_and_their_subtables_belong_to_the_last() -> None:
    found = key_lines(TEXT)
    assert found["channel", 0, "name"] == line_of('name = "quantise"')
    assert found["channel", 1, "name"] == line_of('name = "other"')
    assert found["channel", 1, "inner", "bits"] == line_of("bits")


def test_what_looks_like_a_key_inside_a_text_is_not_one() -> None:
    assert key_lines(TEXT)["method", "lr"] == line_of("lr = 0.1")


def test_the_example_is_what_it_seems() -> None:
    values = tomllib.loads(TEXT)
    assert values["channel"][1]["inner"] == {"bits": 3}
    assert values["method"]["lr"] == 0.1


def test_windows_line_ends_make_no_difference() -> None:
    assert key_lines(TEXT.replace("\n", "\r\n")) == key_lines(TEXT)


def test_a_long_list_over_many_lines_is_one_statement() -> None:
    text = "a = [\n" + "1,\n" * 50 + "]\nb = 2"
    assert key_lines(text) == {("a",): 1, ("b",): 53}

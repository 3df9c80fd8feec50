"""Settings from a file, flags and --set: which wins, and where each came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.errors import ConfigError
from fedloom.experiment import Override, Settings, parse_set


def written(folder: Path, text: str) -> Path:
    path = folder / "exp.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_later_settings_win_and_say_where_they_are_from(tmp_path: Path) -> None:
    path = written(tmp_path, "rounds = 3\n[method]\nlr = 0.1\nbatch = 8\n")
    settings = Settings.read(path, [Override("method.lr", 0.2, "--lr"), parse_set("method.lr=0.3")])
    assert settings.values == {"rounds": 3, "method": {"lr": 0.3, "batch": 8}}
    assert settings.place(("method", "lr")) == "--set method.lr=0.3"
    assert settings.place(("method", "batch")) == f"{path}:4"
    assert settings.place(("method", "steps")) == f"{path}:2"
    assert settings.place(("seed",)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1", 1),
        ("a.b=0.5", 0.5),
        ("a.b=true", True),
        ("a.b=[1, 2]", [1, 2]),
        ('a.b="x"', "x"),
        ("a.b=adam", "adam"),
        ("a.b=uniform:1:2", "uniform:1:2"),
        ("a.b=x=y", "x=y"),
    ],
)
def test_the_value_of_set_is_toml_and_a_bare_word_is_a_text(text: str, value: object) -> None:
    assert parse_set(text).value == value


@pytest.mark.parametrize("text", ["method.lr", "=3", "method lr=3", ".lr=3"])
def test_a_set_that_is_no_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        parse_set(text)


def test_a_way_through_a_list_is_for_all_of_it_or_for_the_one_with_that_number(tmp_path: Path) -> None:
    path = written(tmp_path, "[[evaluation]]\n[[evaluation]]\nname = 'b'\n")
    settings = Settings.read(path, [parse_set("evaluation.every=5"), parse_set("evaluation.1.on=target")])
    assert settings.values["evaluation"] == [{"every": 5}, {"name": "b", "every": 5, "on": "target"}]
    with pytest.raises(ConfigError, match="has 2 entries"):
        settings.set(parse_set("evaluation.2.on=target"))


def test_a_key_below_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set rounds\.more=1.*rounds is a value"):
        Settings.read(written(tmp_path, "rounds = 3"), [parse_set("rounds.more=1")])
    with pytest.raises(ConfigError, match=r"^rounds\.more: rounds is a value"):
        Settings.read(written(tmp_path, "rounds = 3"), {"rounds.more": 1})


def test_a_copy_can_be_changed_alone() -> None:
    settings = Settings.read(None, [parse_set("method.lr=1")])
    settings.copied().set(parse_set("method.lr=2"))
    assert settings.values == {"method": {"lr": 1}}


def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "rounds = 3\nseed = = 4\n")
    with pytest.raises(ConfigError, match=r"exp\.toml:2: not valid TOML"):
        Settings.read(path)


def test_a_missing_file_a_folder_and_a_binary_file_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        Settings.read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="fedloom resume"):
        Settings.read(tmp_path)
    (tmp_path / "x.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="UTF-8"):
        Settings.read(tmp_path / "x.toml")


def test_the_settings_of_a_run_from_python_are_refused_with_the_way_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume=True"):
        Settings.read(written(tmp_path, 'made_by = "python"\n'))

"""Settings from a file, flags and --set: which wins, and where each came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.errors import ConfigError
from fedloom.experiment import Experiment, Override, Settings, parse_set


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deep|nested deeper than 40"),
        (".".join(["a"] * 500) + " = 1", "nested deeper than 40"),
        ("rounds = 3\nseed = " + "9" * 5000, r"exp\.toml:2: not valid TOML"),
        ("x" * 17_000_000, "larger than 16 MB"),
    ],
)
def test_a_file_that_is_too_deep_too_long_or_too_large_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "exp.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        Settings.read(path)


def test_a_device_without_end_is_no_experiment_file() -> None:
    with pytest.raises(ConfigError, match="larger than 16 MB"):
        Settings.read("/dev/zero")


def test_a_long_list_over_many_lines_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "exp.toml"
    names = "\n".join(f'  "class [{k}] # {k}",' for k in range(20_000))
    path.write_text(f'seed = 1\nnames = [\n{names}\n]\n[data]\nclients = 3\ntext = """\n]\n"""\nlast = 1\n')
    settings = Settings.read(path)
    assert settings.places[("data", "clients")] == f"{path}:20005"
    assert settings.places[("data", "last")] == f"{path}:20009"
    assert len(settings.values["names"]) == 20_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data.clients": 2**63}, "data.clients = 9223372036854775808 should be a whole number that 64 bits can hold"),
        ({"data.clients": 2**62}, "data.clients = 4611686018427387904 cannot be: the data have 1797 rows"),
        ({"model.name": "mlp", "model.hidden": [10**9]}, "this needs about"),
        ({"model.name": "mlp", "model.hidden": [-4]}, "model.hidden"),
        ({"method.name": "fedadam", "method.tau": 1e30}, "method.tau = 1e[+]30 should be"),
        ({"method.lr": 1e300}, "lr = 1e[+]300 cannot be: the largest number of the model"),
        ({"fleet.speed": "100", "fleet.fails_every": 5.0, "fleet.repair": 1.7e308}, "fleet.repair = 1.7e[+]308"),
        ({"name": "\udcff"}, "should be a text in UTF-8"),
        ({"fleet.trace": "a\0b"}, "should be a text without null characters"),
    ],
)
def test_values_that_no_run_can_have_are_refused_by_their_names(change: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Experiment.load(None, change).check()


def test_a_list_that_is_too_deep_is_refused_from_python_too() -> None:
    deep: list[object] = []
    deep.append(deep)
    with pytest.raises(ConfigError, match=r"rounds = .*deeply"):
        Experiment(Settings.read(None, {"rounds": deep}))

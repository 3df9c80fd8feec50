"""What cannot be is refused before any work: the key, the file and line, what is wrong, the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.errors import ConfigError, DataError, FedloomError, ModelError
from fedloom.experiment import Experiment, parse_set


def refusal(folder: Path, text: str, *sets: str) -> str:
    path = folder / "exp.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FedloomError) as caught:
        Experiment.load(path, [parse_set(one) for one in sets]).check()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sed = 1", "exp.toml:1: sed = 1 is no setting or section of an experiment; did you mean 'seed'?"),
        ("rounds = 0", "exp.toml:1: rounds = 0 should be a whole number of at least 1"),
        ('dtype = "float16"', "did you mean 'float64'?"),
        ("\n[executoin]", "exp.toml:2: executoin is no setting or section of an experiment; did you mean 'execution'?"),
        ("data = 3", "exp.toml:1: data = 3 should be a table: write [data] above its keys"),
        ('[data]\nname = "digitz"', "exp.toml:2: data.name = \"digitz\" is no data set; did you mean 'digits'?"),
        ("[data]\nname = 3", "exp.toml:2: data.name = 3 should be a text"),
        ('[data]\npartition = "dirichle"', 'exp.toml:2: data.partition = "dirichle" is no partition; did you mean'),
        ('[data]\npartition = ["iid", 3]', "exp.toml:2: data.partition"),
        ("[data]\nalpha = 0.3", "exp.toml:2: data.alpha = 0.3 is an option of partition = 'dirichlet', which is not"),
        ("[data]\nclient = 3", "exp.toml:2: data.client = 3 is no setting of the data; did you mean 'clients'?"),
        ("[data]\ntest = 1.0", "exp.toml:2: data.test = 1.0 should be a number of at least 0 and below 1 or"),
        ("[data]\npublic = 1", "exp.toml:2: data.public = 1 should be a number above 0 and below 1 or none"),
        (
            '[data]\naugment = "flop"',
            "exp.toml:2: data.augment = \"flop\" cannot be: augment = 'flop': 'flop' does not",
        ),
        ('[data]\nname = "breast-cancer"\naugment = "flip"', 'exp.toml:3: data.augment = "flip" cannot be: '),
        (
            '[data]\npositive = "ten"',
            "exp.toml:2: data.positive = \"ten\" cannot be: there is no class 'ten'; the classes are 0, 1, 2",
        ),
        (
            '[data]\nname = "breast-cancer"\npositive = 1',
            "exp.toml:3: data.positive = 1 cannot be: 'breast-cancer' is a binary",
        ),
        (
            '[data]\nname = "diabetes"\npositive = 1',
            "exp.toml:3: data.positive = 1 cannot be: positive = 1 needs one class",
        ),
        ('[data]\nname = "diabetes"\nfill = true', "exp.toml:3: data.fill = true needs a class for each row"),
        ('[data]\naugment = "flip"\n[method]\nname = "fedsgd"', 'exp.toml:2: data.augment = "flip" '),
        ('[model]\nname = "mpl"', 'exp.toml:2: model.name = "mpl" is no model'),
        (
            '[model]\nname = "mlp"\nhiden = 3',
            "exp.toml:3: model.hiden = 3 is no setting of the model 'mlp'; did you mean",
        ),
        ('[model]\nloss = "hing"', "exp.toml:2: model.loss = \"hing\" is no loss; did you mean 'hinge'?"),
        ('[method]\nname = "fedavgg"', "exp.toml:2: method.name = \"fedavgg\" is no method; did you mean 'fedavg'?"),
        (
            "[method]\nlearning_rate = 1",
            "exp.toml:2: method.learning_rate = 1 is no setting of the method 'fedavg'; did",
        ),
        ("[method]\nlr = -1", "exp.toml:2: method.lr = -1 should be a number above 0"),
        ("[selection]\nper_round = 3\nfraction = 0.1", "exp.toml:3: selection.fraction = 0.1 cannot be beside"),
        ('[selection]\nname = "all"\nper_round = 3', "exp.toml:3: selection.per_round = 3 cannot be: the selection is"),
        ("[selection]\nfraction = 0.0", "exp.toml:2: selection.fraction = 0.0 should be above 0"),
        ('[selection]\nname = "unifrom"', "did you mean 'uniform'?"),
        ('[fleet]\npreset = "cross-devise"', 'exp.toml:2: fleet.preset = "cross-devise" is no fleet; did you mean'),
        ('[fleet]\nspeed = "fast"', "exp.toml:2: fleet.speed = \"fast\" cannot be: 'fast' is no distribution"),
        ("[fleet]\ndropout = 2", "exp.toml:2: fleet.dropout = 2 should be a number from 0 to 1"),
        (
            '[fleet]\ndelay_up = "uniform:-5:10"',
            "exp.toml:2: fleet.delay_up = \"uniform:-5:10\" cannot be: 'uniform:-5:10'",
        ),
        ("[fleet]\nspeed = 5\nperiod = 9", "exp.toml:1: fleet cannot be: fleet.period = 9.0 means nothing without"),
        ("[fleet]\nabsent = 1.0", "exp.toml:1: fleet cannot be: fleet.absent = 1: nobody would ever be there"),
        ("[fleet]\nabsent = 1.5", "exp.toml:2: fleet.absent = 1.5 should be a number from 0 to 1"),
        ('[fleet]\nleaves = "soon"', "exp.toml:2: fleet.leaves = \"soon\" cannot be: 'soon' is no distribution"),
        ('[[channel]]\nname = "quantize"', 'exp.toml:2: channel.0.name = "quantize" is no step of a channel; did you'),
        ('[[channel]]\nname = "quantise"\nbits = 40', "exp.toml:3: channel.0.bits = 40 should be a whole number from"),
        ("[[channel]]\nbits = 4", "exp.toml:1: channel.0 has no name; choose one of"),
        ("[channel]\nbits = 4", "exp.toml:1: channel should be a table: write [[channel]] above its keys"),
        (
            '[evaluation]\nmetrics = ["acuracy"]',
            "exp.toml:2: evaluation.metrics = [\"acuracy\"] cannot be: there is no metric 'acuracy'; did you mean "
            "'accuracy'?",
        ),
        ('[evaluation]\nsplit = "tset"', "exp.toml:2: evaluation.split = \"tset\" is no split; did you mean 'test'?"),
        ("[[evaluation]]\n[[evaluation]]", "needs a name of its own"),
        ('[execution]\nray_address = "auto"', 'exp.toml:2: execution.ray_address = "auto" goes with executor = "ray"'),
        (
            '[execution]\nexecutor = "process"',
            "exp.toml:2: execution.executor = \"process\" is no executor; did you mean 'processes'? Or choose one of "
            "auto, serial, processes, ray, or your own as module:Class",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_key_place_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[data]\npartition = "classes"\nclasses_per_client = 11',
            "exp.toml:3: data.classes_per_client = 11 cannot be: the data have 10 classes; choose 1 to 10",
        ),
        (
            "[data]\nclients = 5\n[selection]\nper_round = 6",
            "exp.toml:4: selection.per_round = 6 cannot be: there are 5",
        ),
        (
            "[data]\nclients = 10\ntarget = 0.2\n[selection]\nper_round = 9",
            "exp.toml:5: selection.per_round = 9 cannot be: 8 clients can take part; choose 1 to 8",
        ),
        ("[data]\nclients = 2000", "exp.toml:2: data.clients = 2000 cannot be: the data have 1797 rows"),
        (
            '[data]\nname = "diabetes"\npartition = "classes"',
            'exp.toml:3: data.partition = "classes" needs a class for each row, but this is a regression task',
        ),
        ('[data]\npartition = "natural"', 'exp.toml:2: data.partition = "natural" cannot be: these data come without'),
        ('[data]\ntest = "published"', 'exp.toml:2: data.test = "published" cannot be: these data have no published'),
        ('[evaluation]\non = "target"', 'exp.toml:2: evaluation.on = "target" cannot be: no client is a target; give'),
        ("[data]\ntest = 0.0", "exp.toml:2: data.test = 0.0 cannot be"),
        ('[data]\nname = "diabetes"\n[model]\nloss = "hinge"', 'exp.toml:4: model.loss = "hinge" cannot be'),
        ('[evaluation]\nmetrics = ["rmse"]', 'exp.toml:2: evaluation.metrics = ["rmse"] cannot be'),
        ('[fleet]\nspeed = 5\ntrace = "gone.csv"', 'exp.toml:3: fleet.trace = "gone.csv" cannot be: '),
        ("[data]\nclients = 3\n[fleet]\nabsent = 0.9", "exp.toml:4: fleet.absent = 0.9 cannot be: fleet.absent = 0.9"),
        ('[data]\npartition = ["iid", "dirichlet"]', "exp.toml:2: data.partition: iid and dirichlet both say"),
        ('[data]\npartition = "dirichlet"\nalpha = 0.0', "exp.toml:3: data.alpha = 0.0 should be a number above 0"),
    ],
)
def test_an_impossible_combination_is_refused_before_any_work(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_a_client_without_data_is_refused(tmp_path: Path) -> None:
    table = "x,label,client\n" + "".join(f"{k},{k % 2},{'ab'[k % 2]}\n" for k in range(8))
    (tmp_path / "table.csv").write_text(table, encoding="utf-8")
    text = '[data]\npath = "table.csv"\nlabel_column = "label"\nclient_column = "client"\nsource_classes = [0]'
    said = refusal(tmp_path, text)
    assert "exp.toml:1: data: client b would have no data" in said


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, "rounds = 0\n[method]\nlr = 0\nepochs = 0.5\n[fleet]\nloss = 7", "data.name=nothing")
    assert said.startswith("5 settings cannot be:")
    for place in ("exp.toml:1: rounds", "exp.toml:3: method.lr", "exp.toml:4: method.epochs", "exp.toml:6: fleet.loss"):
        assert place in said
    assert "--set data.name=nothing: data.name" in said


def test_a_model_that_does_not_fit_the_data_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text('[model]\nname = "lstm"')
    with pytest.raises(ModelError, match=r"exp\.toml:2: model\.name: lstm reads windows"):
        Experiment.load(tmp_path / "exp.toml").check()


def test_a_data_file_that_is_missing_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text('[data]\npath = "gone.csv"\nlabel_column = "y"')
    with pytest.raises(DataError, match=r"exp\.toml:2: data\.path: .*gone\.csv is not there"):
        Experiment.load(tmp_path / "exp.toml").check()


def test_a_value_from_python_is_named_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^method\.lr = -1 should be a number above 0$"):
        Experiment.load(None, {"method.lr": -1})
    with pytest.raises(ModelError, match=r"^model\.name: lstm reads windows"):
        Experiment.load(None, {"model.name": "lstm"}).check()

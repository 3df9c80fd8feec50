"""The tables of experiments that ship: what they are about can be read and, where the data are there, run."""

from __future__ import annotations

import pytest

from fedloom.experiment import Shelf
from fedloom.reproduce import Cell, Plan, read_plan
from fedloom.reproduce.plan import check
from fedloom.reproduce.shelf import shipped
from real_data import real_data

DATA = {
    "d1-accuracy": ("fashion-mnist", "cifar10", "cifar100"),
    "d1-forgetting": ("fashion-mnist", "cifar10", "cifar100"),
    "d1-prior": ("cifar10",),
    "d1-rho": ("cifar10", "cifar100"),
    "d2-dropout": ("extrasensory", "beijing-air"),
    "d2-growth": ("beijing-air", "extrasensory", "fashion-mnist"),
    "d2-quality": ("beijing-air", "extrasensory", "fashion-mnist"),
    "d2-time": ("beijing-air", "extrasensory", "fashion-mnist"),
    "d3-error": ("hapt", "vehicle", "landmine"),
    "d4-fedmeta": ("mnist", "cifar10"),
    "d4-personal": ("mnist", "cifar10"),
    "drift": (),
    "d4-layers": ("cifar10",),
    "fedu": ("vehicle", "mnist"),
    "optimisation": ("fashion-mnist",),
    "sharing": ("mnist", "cifar10"),
    "personal": ("vehicle", "hapt", "mnist", "qmnist"),
    "pfllib": ("fashion-mnist",),
}


def read(name: str, quick: bool = False) -> Plan:
    return read_plan(shipped() / f"{name}.toml", quick=quick)


def runnable(plan: Plan) -> list[Cell]:
    return [cell for cell in plan.cells if cell.repeats]


def test_every_table_is_known_here() -> None:
    assert sorted(path.stem for path in shipped().glob("*.toml")) == sorted(DATA)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_the_settings_of_every_run_can_be(name: str, quick: bool) -> None:
    plan = read(name, quick)
    cells = runnable(plan)
    made = [cell.experiment(cell.seeds[0], point, [], Shelf()) for cell in cells for point in cell.points or (None,)]
    assert len(made) >= len(cells) > 0


@pytest.mark.parametrize("name", DATA)
def test_the_first_column_fits_its_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(real_data(*DATA[name][:1])))
    plan = read(name)
    cells = runnable(plan)
    check([cell for cell in cells if cell.home[1] == cells[0].home[1]], plan, [], Shelf())


def test_d1_compares_every_published_number_but_those_of_another_run() -> None:
    accuracy, forgetting = read("d1-accuracy"), read("d1-forgetting")
    known = {cell.title: cell.published.value for cell in accuracy.cells if cell.published}
    assert len(known) == 21
    assert (known["ADMM-FedMeta / CIFAR-10"], known["FedAvg, 10 updates / CIFAR-100"]) == (74.61, 49.97)
    apart = [cell.title for cell in forgetting.cells if cell.published and cell.published.not_comparable]
    assert len([cell for cell in forgetting.cells if cell.published]) == 24
    assert apart == ["Per-FedAvg / CIFAR-100, prior task", "Per-FedAvg / CIFAR-100, new task"]


def test_the_matched_step_of_per_fedavg_is_that_of_admm_fedmeta() -> None:
    settings = {cell.title: cell.settings.values for cell in read("d1-accuracy").cells}
    for column in read("d1-accuracy").columns:
        admm, matched = (settings[f"{row} / {column}"] for row in ("ADMM-FedMeta", "Per-FedAvg, step of ADMM-FedMeta"))
        sources = 0.8 * admm["data"]["clients"]
        assert matched["method"]["lr"] * sources * admm["method"]["rho"] == pytest.approx(1, abs=1e-8)


def test_d1_has_the_sizes_that_the_authors_code_draws() -> None:
    import random

    drawn = []
    for client in range(100):
        random.seed(client)
        drawn.append(2 * (10 + random.randint(0, 10)))
    sizes = {cell.column: cell.settings.values["data"]["sizes"] for cell in read("d1-accuracy").cells}
    assert sizes["CIFAR-100"] == drawn
    assert sizes["CIFAR-10"] == sizes["Fashion-MNIST, random pairs"] == drawn[:50]


def test_d4_has_the_sizes_that_the_reports_generators_draw() -> None:
    sizes = {cell.column: cell.settings.values["data"]["sizes"] for cell in read("d4-fedmeta").cells}
    totals = {name: [sum(pair) for pair in pairs] for name, pairs in sizes.items()}
    assert (sum(totals["MNIST"]), max(totals["MNIST"]), min(totals["MNIST"])) == (70_000, 5_201, 137)
    assert (sum(totals["CIFAR-10"]), max(totals["CIFAR-10"]), min(totals["CIFAR-10"])) == (52_497, 1_986, 506)
    assert round(0.75 * max(totals["MNIST"]), -2) == 3_900
    assert round(0.75 * max(totals["CIFAR-10"]), -2) == 1_500


def test_d4_personal_differs_from_d4_fedmeta_in_the_last_layer_alone() -> None:
    """Data, rounds and rows of the evaluation are the same, and so are MNIST's steps."""
    plain, personal = (
        {cell.title: cell.settings.values for cell in read(f"d4-{name}").cells} for name in ("fedmeta", "personal")
    )
    for column in ("MNIST", "CIFAR-10"):
        for row in ("FedMeta(MAML)", "FedMeta(Meta-SGD)"):
            one, other = plain[f"{row} / {column}"], personal[f"{row}+Per / {column}"]
            assert {**one, "method": 0} == {**other, "method": 0}
            own = {"name": other["method"]["name"], "start": "common"}
            if column == "MNIST":
                assert {**one["method"], **own} == other["method"]


D2 = ("d2-dropout", "d2-growth", "d2-quality", "d2-time")


def test_d2_has_every_published_number_and_the_columns_of_fitrec_without_runs() -> None:
    quality, time = read("d2-quality"), read("d2-time")
    assert [sum(cell.published is not None for cell in plan.cells) for plan in (quality, time)] == [8 * 11, 6 * 4]
    assert list(quality.unavailable) == [column for column in quality.columns if column.startswith("FitRec")]
    assert list(time.unavailable) == ["FitRec"]
    assert {cell.column for cell in quality.cells if not cell.repeats} == set(quality.unavailable)


@pytest.mark.parametrize("name", D2)
def test_d2_has_one_clock_one_stream_and_the_same_visits_for_every_method(name: str) -> None:
    for cell in runnable(read(name)):
        values, pooled = cell.settings.values, cell.row == "Global"
        assert values["fleet"]["delay_up"] == (39 if pooled else "uniform:10:100")
        assert (values["rounds"], values["method"]["batch"]) == (100_000, 32)
        assert values["method"]["steps"] == (100 if values["data"]["name"] == "fashion-mnist" else 120) / (
            1 if pooled else 20 if values["data"]["name"] == "fashion-mnist" else 12
        )
    settings = [cell.settings.values for cell in runnable(read(name))]
    assert all(one["stream"] == settings[0]["stream"] for one in settings)
    assert {one["schedule"]["seconds"] for one in settings} == {5400 if name == "d2-growth" else 6000}


def test_the_shares_of_d2_growth_have_come_at_the_times_at_which_it_is_read() -> None:
    for cell in read("d2-growth").cells:
        values = cell.settings.values
        share = float(cell.column.rpartition(", ")[2].removesuffix(" %")) / 100
        at, stream = cell.measure.at_seconds, values["stream"]
        time = values["schedule"]["seconds"] if at is None else at
        assert stream["start"] + (1 - stream["start"]) * time / stream["duration"] == pytest.approx(share)

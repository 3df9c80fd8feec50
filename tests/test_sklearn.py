"""The estimators: scikit-learn's own checks, whose rows are whose, models of single clients, searches."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedloom
from fedloom import FederatedClassifier, FederatedRegressor
from fedloom.errors import ConfigError, FedloomError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(120, 4))
HOSPITAL = np.repeat(["north", "south", "west"], 40)
SIGN = np.where(HOSPITAL == "west", -1.0, 1.0)
"""In the west everything is the other way round."""
ILL = np.where(X[:, 0] * SIGN > 0, "ill", "well")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [FederatedClassifier, FederatedRegressor])
def test_the_estimators_pass_all_of_scikit_learns_checks(cls: type) -> None:
    results = check_estimator(cls(), on_fail=None, on_skip=None)
    assert len(results) > 40
    left = {result["check_name"]: result["status"] for result in results if result["status"] != "passed"}
    assert left == {"check_array_api_input": "skipped"}  # which scikit-learn does only for SCIPY_ARRAY_API=1


def test_a_linear_regression_by_exact_rounds_is_that_of_scikit_learn() -> None:
    y = X @ [1.0, -2.0, 0.5, 3.0] + 4 + RANDOM.normal(size=120)
    ours = FederatedRegressor("admm", "linear", rounds=400, random_state=0).fit(X, y, groups=HOSPITAL)
    assert ours.predict(X) == pytest.approx(LinearRegression().fit(X, y).predict(X), abs=1e-6)
    assert ours.run_.summary["data"] == "rows"


def test_predictions_are_in_the_units_of_the_targets_and_one_for_each_of_several() -> None:
    y = np.column_stack([1000 + 50 * X[:, 0], X[:, 1] / 1000])
    model = FederatedRegressor("fedavg:lr=0.1", "linear", rounds=60, random_state=0).fit(X, y)
    assert model.predict(X).shape == (120, 2)
    assert model.score(X, y) > 0.99
    one = FederatedRegressor("fedavg", "linear", rounds=5, random_state=0).fit(X, y[:, 0])
    assert one.predict(X).shape == (120,)


def test_groups_are_the_clients_and_each_has_its_own_model_where_the_method_makes_one() -> None:
    alone = FederatedClassifier("local", "linear", rounds=30, random_state=0).fit(X, ILL, groups=HOSPITAL)
    assert alone.clients_.tolist() == ["north", "south", "west"]
    assert (alone.predict(X, groups=HOSPITAL) == ILL).mean() > 0.95
    assert (alone.predict(X, groups=np.full(120, "north")) == ILL).mean() < 0.75  # of whom a third is the other way
    common = FederatedClassifier("fedavg", "linear", rounds=30, random_state=0).fit(X, ILL, groups=HOSPITAL)
    assert (common.predict(X) == ILL).mean() < 0.75
    assert (common.predict(X) == common.predict(X, groups=HOSPITAL)).all()


def test_a_model_made_for_adaptation_is_adapted_to_the_clients_that_it_knows() -> None:
    model = FederatedClassifier("per-fedavg:alpha=0.5", "linear", rounds=3, scaling="none", random_state=0)
    model.fit(X, ILL, groups=HOSPITAL)
    west, theta = HOSPITAL == "west", model.run_.theta.numpy()
    rows, well = np.column_stack([X, np.ones(120)]), ILL == "well"  # weights, then the bias
    slope = 1 / (1 + np.exp(-rows[west] @ theta)) - well[west]
    adapted = theta - 0.5 * rows[west].T @ slope / west.sum()
    assert model.decision_function(X[west], groups=HOSPITAL[west]) == pytest.approx(rows[west] @ adapted, abs=1e-9)
    with pytest.warns(UserWarning, match=r"per-fedavg makes a model that clients adapt .* used as it is"):
        assert model.decision_function(X) == pytest.approx(rows @ theta, abs=1e-9)


def test_a_method_without_a_common_model_wants_to_know_whose_rows_these_are() -> None:
    alone = FederatedClassifier("local", "linear", rounds=2, random_state=0).fit(X, ILL, groups=HOSPITAL)
    with pytest.raises(ConfigError, match=r"local has a model for each client .* groups="):
        alone.predict(X)
    with pytest.raises(ConfigError, match="some of these groups were not there"):
        alone.predict(X, groups=np.full(120, "east"))
    dealt = FederatedClassifier("local", "linear", rounds=2, random_state=0).fit(X, ILL)
    with pytest.raises(ConfigError, match="fitted without groups"):
        dealt.predict(X, groups=HOSPITAL)


def test_what_is_predicted_is_what_train_learns_on_the_same_rows() -> None:
    model = FederatedClassifier(fedloom.FedProx(mu=0.1), "linear", rounds=4, scaling="none", random_state=3)
    model.fit(X, ILL, groups=HOSPITAL)
    data = fedloom.federate(fedloom.from_arrays(X, ILL, clients=HOSPITAL), test=0.0, seed=3)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data), dtype=torch.float64)
    run = fedloom.train(problem, "fedprox:mu=0.1", rounds=4, seed=3, evaluate=[])
    assert run.theta.numpy() == pytest.approx(model.run_.theta.numpy(), abs=1e-6)  # rows in 32 bits there
    says = torch.sigmoid(problem.model(model.run_.theta, torch.from_numpy(X)))[:, 0].numpy()
    assert model.predict_proba(X)[:, 1] == pytest.approx(says, abs=1e-12)
    assert np.exp(model.predict_log_proba(X)) == pytest.approx(model.predict_proba(X), abs=1e-12)
    assert ((model.decision_function(X) > 0) == (says > 0.5)).all()


def test_data_frames_keep_their_names_and_wrong_ones_are_refused() -> None:
    frame = pd.DataFrame(X, columns=["age", "sbp", "bmi", "rate"])
    model = FederatedClassifier("fedavg", "linear", rounds=2, random_state=0).fit(frame, ILL)
    assert model.feature_names_in_.tolist() == ["age", "sbp", "bmi", "rate"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))


def test_hyper_parameters_are_parameters_that_clones_and_searches_know() -> None:
    model = FederatedClassifier("fedavg", "mlp")
    assert model.get_params()["method__lr"] == 0.1
    model.set_params(method__lr=0.5, model__hidden=[8], rounds=3)
    copy = clone(model)
    assert copy.get_params()["method__lr"] == 0.5
    assert copy.method_params == {"lr": 0.5}
    assert copy.fit(X, ILL).run_.summary["parameters"] == 4 * 8 + 8 + 8 + 1
    given = FederatedClassifier(fedloom.FedProx(mu=0.3)).set_params(method__mu=0.7)
    assert (given.get_params()["method__mu"], given.get_params()["method__lr"]) == (0.7, 0.1)
    with pytest.raises(ValueError, match="no parameter 'learning_rate'; did you mean 'lr'"):
        model.set_params(method__learning_rate=1)


def test_a_search_over_hyper_parameters_keeps_hospitals_together() -> None:
    x, y = make_classification(90, 4, random_state=0)
    hospital = np.arange(90) % 6
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedClassifier("fedavg", "linear", rounds=5, random_state=0).set_fit_request(groups=True)
        search = GridSearchCV(model, {"method__lr": [1e-6, 0.3]}, cv=GroupKFold(3)).fit(x, y, groups=hospital)
    assert search.best_params_ == {"method__lr": 0.3}
    assert search.best_estimator_.clients_.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_estimator_is_a_part_of_pipelines_and_goes_through_a_file() -> None:
    pipeline = make_pipeline(StandardScaler(), FederatedClassifier(rounds=3, random_state=0)).fit(X, ILL)
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict_proba(X) == pipeline.predict_proba(X)).all()
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    own = clone(FederatedClassifier(model=module, rounds=3, random_state=0)).fit(X, ILL)
    assert (pickle.loads(pickle.dumps(own)).predict(X) == own.predict(X)).all()


def test_a_random_state_decides_the_model() -> None:
    def fitted(state: object) -> np.ndarray:
        return FederatedClassifier(rounds=2, random_state=state).fit(X, ILL).decision_function(X)

    assert (fitted(1) == fitted(1)).all()
    assert not (fitted(1) == fitted(2)).all()
    assert (fitted(np.random.RandomState(5)) == fitted(np.random.RandomState(5))).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"method": "fedavgg"}, "no method 'fedavgg'; did you mean 'fedavg'"),
        ({"method": fedloom.FedAvg}, "FedAvg is the class of a method"),
        ({"method": "sharing-admm"}, "hold columns of the same rows"),
        ({"method_params": {"mu": 1}}, "mu is no hyper-parameter of fedavg"),
        ({"method_params": 3}, "method_params = 3 cannot be; give a dict"),
        ({"model": "mpl"}, "no model 'mpl'; did you mean 'mlp'"),
        ({"model": 3}, "model = 3 cannot be"),
        ({"scaling": "z"}, "Scaling: kind = 'z' cannot be"),
        ({"dtype": "int"}, "dtype = 'int' cannot be; choose float32 or float64"),
        ({"loss": "squarred"}, "no loss 'squarred'"),
        ({"train_params": {"out": "here"}}, "train_params has 'out'"),
        ({"train_params": {"flett": 1}}, "train has no argument 'flett'; did you mean 'fleet'"),
        ({"rounds": 0}, "rounds = 0"),
    ],
)
def test_a_wrong_parameter_is_told_when_it_is_fitted(how: dict[str, object], message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        FederatedClassifier(**{"rounds": 1, **how}).fit(X, ILL)


def test_few_rows_are_dealt_to_as_many_clients_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match="6 rows cannot be dealt to 10 clients: 6 clients have one each"):
        model = FederatedClassifier(rounds=1, random_state=0).fit(X[:6], ["a", "b"] * 3)
    assert len(model.clients_) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedClassifier(rounds=1, clients=3, random_state=0).fit(X[:6], ["a", "b"] * 3)


def test_a_loss_without_probabilities_has_no_predict_proba() -> None:
    model = FederatedClassifier(model="linear", loss="hinge", rounds=60, random_state=0).fit(X[:80], ILL[:80])
    assert not hasattr(model, "predict_proba")
    assert model.score(X[:80], ILL[:80]) > 0.9

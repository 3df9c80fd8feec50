"""What is known of FedAvg with models of clients beside it: fine-tuning and Ditto."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Limit, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.baselines import own_optima
from fedloom.conformance.declarations.common import (
    BATCHES,
    DRIFT,
    EVERY,
    FALLING,
    SHORT,
    WHO_ANSWERS,
    averaged_step,
    biased_limit,
    descent,
    ends,
    fitted,
    follows,
    pooled_optimum,
    prox,
    reached,
    slopes,
    unequal_problem,
)
from fedloom.conformance.declarations.courses import (
    ROUNDS,
    TRAINING,
    Adapts,
    AdaptsInPasses,
    Course,
    Defaults,
    Ledger,
    Passes,
    started,
)
from fedloom.conformance.declarations.personal import served
from fedloom.conformance.problems import Known, agreeing, classification
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.local import Local
from fedloom.types import State

# Fine-tuning


def own_passes(method: Any, state: State) -> tuple[Any, int]:
    """The step size and the number of the steps by which a client fits the model."""
    return method.lr if method.personal_lr is None else method.personal_lr, method.personal_epochs


@dataclass(frozen=True, eq=False)
class FitsInPasses(AdaptsInPasses):
    """Of a client whose steps have the size and the mini-batches of its training, or a size of their own."""

    def given(self) -> dict[str, Any]:
        return {"personal_lr": 0.8, "batch": 4}


_FITS = {"personal_epochs": 3, "personal_lr": 0.4}
_TRAINING = {**TRAINING, **ROUNDS, "weighting": "size"}

_ITS_SERVER = {"by rows": EVERY, "each alike": {**EVERY, "weighting": "uniform"}}

FINE_TUNE = Declaration(
    claims=(
        *(
            Same(f"it trains as FedAvg does ({name})", classification, how, FedAvg(**how), SHORT)
            for name, how in _ITS_SERVER.items()
        ),
        ends("K local steps have FedAvg's limit", biased_limit, DRIFT, 60, hardships=reached(120, "late")),
        follows("every round is FedAvg's", averaged_step, {**DRIFT, "lr": FALLING}, stands=WHO_ANSWERS),
        Limit("mini-batches find a common optimum", agreeing, pooled_optimum, BATCHES, 150, 1e-8, reached(200)),
        Adapts("clients fit the model by passes over their rows", fitted(own_passes), {**DRIFT, **_FITS}),
        Adapts("without a step size of their own by that of training", fitted(own_passes), {**DRIFT, "lr": 0.3}),
        Adapts(
            "with momentum too", fitted(own_passes, 0.9), {**DRIFT, **_FITS, "optimiser": "momentum", "batch": None}
        ),
        FitsInPasses(),
        Passes(),
        Defaults(
            {**_TRAINING, "personal_epochs": 5, "personal_lr": None, "evaluates": "adapted", "adapts_on": "train"}
        ),
    ),
    batches=BATCHES,
)


# Ditto


def ditto_limit(known: Known, method: Any) -> Tensor:
    """v_i → (A_i + λ)⁻¹(b_i + λw), w being where FedAvg ends."""
    return prox(known, method.lambda_, biased_limit(known, method))


def algorithm_of_ditto(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """w by FedAvg; v_k by as many steps on f_k(v) + (λ/2)‖v − w‖², w being the model that was sent."""
    some, x = known.only(torch.tensor(heard)), at.state["x"]
    beta, lr = 0.9 if method.optimiser == "momentum" else 0.0, method.personal_lr or method.lr
    v = torch.stack([at.memory.get(i, {"v": x})["v"] for i in heard])
    v = descent(lambda y: slopes(some, y) + method.lambda_ * (y - x), v, lr, method.steps, beta)
    w = descent(partial(slopes, some), x.expand(len(heard), -1), method.lr, method.steps, beta)
    at.memory |= {i: {"v": row} for i, row in zip(heard, v, strict=True)}
    at.state["x"] = some.weights(method.weighting) @ w


_NEAR = {**DRIFT, "lambda_": 0.4}

DITTO = Declaration(
    claims=(
        *(
            Same(f"the server's model is FedAvg's ({name})", classification, how, FedAvg(**how), SHORT, look=served)
            for name, how in _ITS_SERVER.items()
        ),
        Same("without a pull every client is alone", unequal_problem, {**DRIFT, "lambda_": 0.0}, Local(**DRIFT)),
        Course("every round is Algorithm 1", started(), algorithm_of_ditto, _NEAR, stands=WHO_ANSWERS),
        Course(
            "so it is with steps of its own that fall",
            started(),
            algorithm_of_ditto,
            {**_NEAR, "lr": FALLING, "personal_lr": 0.5, "weighting": "uniform"},
        ),
        Course("so it is with momentum", started(), algorithm_of_ditto, {**_NEAR, "lr": 0.1, "optimiser": "momentum"}),
        ends("v_i is held near FedAvg's limit", ditto_limit, _NEAR, 80, hardships=reached(160, "late")),
        ends("strongly so", ditto_limit, {**DRIFT, "lambda_": 40.0, "personal_lr": 0.04}, 80),
        ends("not at all", own_optima, {**DRIFT, "lambda_": 0.0}, 80, hardships=reached(200, "quantised")),
        Passes({"lambda_": 0.0}),
        Defaults({**_TRAINING, "lambda_": 1.0, "personal_lr": None, "evaluates": "personal"}),
    ),
    batches=BATCHES,
)

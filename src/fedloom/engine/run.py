"""A run from its first round to its last, as a call; and the names by which the rest of fedloom knows runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedloom.channel import Channel
from fedloom.engine.course import Course
from fedloom.engine.decision import Decision
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import Fleet
from fedloom.engine.prepared import Prepared, engine_for, prepare
from fedloom.engine.result import Run, load_run
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import Selection
from fedloom.engine.walk import Interrupted, Progress
from fedloom.execution import CPU_ONLY, Executor
from fedloom.federation.model import Model
from fedloom.federation.problem import Problem
from fedloom.federation.streams import Stream
from fedloom.fields import checked
from fedloom.methods import Method, method_of, name_of
from fedloom.report.progress import shown
from fedloom.storage.saved import saved_model
from fedloom.tracking import Tracker, tracker_of
from fedloom.types import Vector

__all__ = ["Course", "Interrupted", "Prepared", "Progress", "Run", "engine_for", "load_run", "prepare", "train"]


def _hyper_parameter(name: str, given: Mapping[str, Any]) -> str:
    """How a hyper-parameter is given, for a call that has it as an argument of its own; and what there is not yet."""
    if name == "device":
        return CPU_ONLY
    if name in ("folds", "fold"):
        return "compare(…, folds=5) has all folds, and federate(…, folds=5, fold=1) gives the data of one"
    method = method_of(given["method"]) if "method" in given else None
    known = [] if method is None else [field.name for field in dataclasses.fields(method)]  # type: ignore[arg-type]
    if method is None or name not in known:
        return ""
    cls = type(method).__name__
    return f"it is a hyper-parameter of the method: {cls}({name}=…), or '{name_of(method)}:{name}=…'"


@checked(itself=("method",), elsewhere=_hyper_parameter)
def train(
    problem: Problem,
    method: Method | str,
    *,
    rounds: int | None = None,
    seed: int = 0,
    select: Selection | int | None = None,
    schedule: Schedule | Literal["rounds", "async"] | None = None,
    fleet: Fleet | None = None,
    stream: Stream | None = None,
    channel: Channel | None = None,
    evaluate: Evaluation | Sequence[Evaluation] | None = None,
    decision: Decision | None = None,
    executor: str | Executor = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    stack: int | None = None,
    on_error: Literal["stop", "drop"] = "stop",
    prior: Vector | Run | str | Path | None = None,
    theta0: Vector | Run | str | Path | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    force_settings: bool = False,
    config: dict[str, Any] | None = None,
    label: str | None = None,
    progress: Progress | bool | None = None,
    callbacks: Sequence[Tracker | str] = (),
    checkpoint_seconds: float = 30.0,
    checkpoint_every: int | None = None,
) -> Run:
    """Train a method on a problem for so many rounds.

    What is trained:

    * ``problem``: the clients' data, the model and the loss.
    * ``method``: the method with its hyper-parameters, ``FedAvg(lr=0.1)``, or its name, "fedavg" or "fedavg:lr=0.1".
    * ``rounds``: how many rounds at most; none: the method's default. ``seed``: of everything that is random.
    * ``select``: who takes part: a number of clients each round, a Selection, or none for everybody.
    * ``schedule``: whether the server waits for them ("rounds") or takes replies as they arrive ("async"); none: the
      method's default. A Schedule also says what ends the run early.
    * ``fleet``: how fast, reliable and near the clients are; none: an ideal one, on which nothing takes time.
    * ``stream``: how the clients' training rows arrive; none: all are there.
    * ``channel``: what messages go through, such as a quantisation; none: they arrive as they were sent.
    * ``evaluate``: one Evaluation or several; none: the default one; an empty list: nothing is evaluated.
    * ``decision``: of yes or no, from which probability on a row is a yes: a number, or "f1", "balanced-accuracy" or
      "youden", which the threshold is to make best on the validation rows. None: the likelier.
    * ``prior``: θ_p, the model of an earlier run, for methods that hold on to one: a vector, a Run, or its folder.
    * ``theta0``: the model to start from, likewise; none: as the model's own initialisation draws it for the seed.
    * ``on_error``: a client that fails, or answers with NaN, ends the run ("stop") or is left out ("drop").

    Where the work is done, on which the result does not depend:

    * ``executor``: "auto", "serial", "processes", "ray", or an Executor. ``workers``: how many processes.
    * ``ray_address``: the cluster for "ray"; none: one on this machine, for this run.
    * ``stack``: how many clients are computed together; none: what suits model, data and method.

    What is kept:

    * ``out``: the folder of the run, which can be looked at, resumed and reported on; none: nothing is written.
    * ``force``: replace what is in the folder. ``resume``: go on with the run that is there, to the same bits.
    * ``force_settings``: go on also where settings, data or files were changed since, and write that down.
    * ``checkpoint_seconds``: seconds between checkpoints. ``checkpoint_every``: rounds between them, instead.
    * ``config``: what the folder says of the settings; none: as much as can be said of objects.
    * ``label``: what the run is called in reports; none: as its method.
    * ``progress``: whether a bar shows the rounds; none: on a terminal and in a notebook. Or your own function, which
      is called after every round with its row of the history and the number of rounds.
    * ``callbacks``: who else is told of the run: trackers such as ``TensorBoard("logs")``, or their names. They change
      nothing of it, and one that fails is left out.

    The result is a Run: the model, the server's state, the history (also as a data frame) and a summary.

        data = fedloom.federate(fedloom.load("digits"), clients=20, partition="dirichlet", alpha=0.3)
        problem = fedloom.Problem(data, fedloom.build_model("mlp", data))
        run = fedloom.train(problem, fedloom.FedAvg(lr=0.1), rounds=5, select=10)
        print(run.frame()["accuracy"])
    """
    chosen = method_of(method)
    prepared = prepare(
        problem,
        chosen,
        rounds=chosen.default_rounds if rounds is None else rounds,
        seed=seed,
        select=select,
        schedule=schedule,
        fleet=fleet,
        stream=stream,
        channel=channel,
        evaluate=evaluate,
        decision=decision,
        executor=executor,
        workers=workers,
        ray_address=ray_address,
        stack=stack,
        on_error=on_error,
        prior=_vector(prior, problem.model),
        theta0=_vector(theta0, problem.model),
        config=config,
        label=label,
        callbacks=[tracker_of(one) for one in callbacks],
        checkpoint_seconds=checkpoint_seconds,
        checkpoint_every=checkpoint_every,
    )
    with shown(progress, prepared.label or name_of(chosen)) as follow:
        return prepared.run(out, force=force, resume=resume, force_settings=force_settings, progress=follow)


def _vector(given: Vector | Run | str | Path | None, model: Model) -> Vector | None:
    """The model that is meant: a vector, a run's, or that of a run's folder."""
    if isinstance(given, str | Path):
        saved = saved_model(given)
        saved.refuse_other(model)
        return saved.theta
    return given.theta if isinstance(given, Run) else given

"""Losses of one row, with their slope in the model's output.

The slope is written out, and not left to autograd, because stacks of small models spend most of their time there.
A loss is a mean over a row's columns and, for a client, a mean over its rows. Its proximal step, row by row, is what
ADMM needs where the outputs are a sum over parties; its conjugate is what methods in the dual need.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, jvp

from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData, Task
from fedloom.federation.regularisers import soft_threshold
from fedloom.register import Register, example_of, hint, named

Link = Literal["logit", "probability", "margin"]
Kind = Literal["hinge", "squared", "logistic"]
ClassWeights = str | Sequence[float] | Mapping[str, float]
"""What a row of each class counts for: "balanced", a number for each class in their order, or one by each name."""
_NEWTON = 100  # steps that a proximal step may take; it needs about ten
_HALVINGS = 30


@dataclass(frozen=True)
class Dual:
    """What the dual of a loss is made of: ℓ = Σ_k s_k φ(out_k, t_k) over the columns of a row, and φ is one of these.

    "hinge" is max(0, 1 − t·out), smoothed over a width γ ("smoothing") where that is above 0; "squared" is
    ½(out − t)², "logistic" log(1 + exp(−t·out)). With one dual number α for each column, and β = αt for the two with
    t = ±1, φ*(−α) is −β + (γ/2)β² for β in [0, 1]; ½α² − αt; and β log β + (1 − β) log(1 − β) for β in [0, 1].
    """

    kind: Kind
    smoothing: float = 0.0

    @property
    def curvature(self) -> float:
        """1/μ: the bound of φ''; infinite where φ has kinks."""
        if self.kind == "hinge":
            return 1 / self.smoothing if self.smoothing else math.inf
        return 1.0 if self.kind == "squared" else 0.25

    def conjugate(self, alpha: Tensor, target: Tensor) -> Tensor:
        """φ*(−α) of each column; infinite where α cannot be."""
        if self.kind == "squared":
            return alpha.square() / 2 - alpha * target
        beta, slack = alpha * target, 8 * torch.finfo(alpha.dtype).eps
        inside = (beta >= -slack) & (beta <= 1 + slack)
        beta = beta.clamp(0, 1)
        if self.kind == "hinge":
            value = beta.square() * (self.smoothing / 2) - beta
        else:
            value = torch.special.xlogy(beta, beta) + torch.special.xlog1py(1 - beta, -beta)
        return torch.where(inside, value, torch.full_like(value, math.inf))


class Loss(ABC):
    """ℓ(out, y): ``out`` has shape (..., rows, columns), the result one number a row."""

    name: str
    tasks: tuple[Task, ...] = ("classification", "binary", "multilabel", "regression")
    threshold = 0.0
    """The output above which a model trained with this loss says 1, where labels are 0 and 1."""
    link: Link = "logit"
    """What the outputs of such a model are, where rows have labels: logits, probabilities, or neither."""
    class_weights: tuple[float, ...] | None = None
    """What a row of each class counts for; none: all count the same."""
    dual: Dual | None = None
    """Of what kind its dual is; none: nobody has written it down."""

    @abstractmethod
    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each row, shape (..., rows)."""

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂out of each row, shape (..., rows, columns). Written out it is faster than by autograd, as here."""
        slope: Tensor = grad(lambda at: self.rows(at, y).sum())(out)
        return slope

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        """argmin t·ℓ(s, y) + ½‖s − v‖² over s, of each row; v has shape (rows, columns)."""
        raise ConfigError(f"the loss {self.name!r} has no proximal step; choose one of {', '.join(with_prox())}")

    @property
    def has_prox(self) -> bool:
        """Whether it has a proximal step."""
        return type(self).prox is not Loss.prox

    def parts(self, y: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Of a loss with a dual, what each column of a row aims at, t_k, and what it counts for in the row, s_k."""
        return 2 * y - 1, torch.full_like(y, 1 / columns)

    def conjugate(self, alpha: Tensor, y: Tensor) -> Tensor:
        """Σ_k s_k φ*(−α_k) of each row, shape (..., rows); infinite where α cannot be."""
        if self.dual is None:
            raise ConfigError(f"the loss {self.name!r} has no conjugate here; choose one of {', '.join(with_dual())}")
        target, share = self.parts(y, alpha.shape[-1])
        counts = share > 0  # ∞·0 would be no number
        each = self.dual.conjugate(torch.where(counts, alpha, 0.0), target.to(alpha.dtype))
        return torch.where(counts, each * share, 0.0).sum(-1)

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """(∂²ℓ/∂out²)·v of each row, shape (..., rows, columns): how the slope changes when the output moves by v."""
        moved: Tensor = jvp(lambda at: self.slope(at, y), (out,), (v,))[1]
        return moved

    def row_weights(self, y: Tensor) -> Tensor | None:
        """What each row counts for by its class; None: all count the same."""
        return None

    def adjusted(self, setting: float) -> Loss | None:
        """The same with another setting, as in "smoothed-hinge:0.5"; None: it has none."""
        return None


def _adjusted(loss: Loss, setting: str) -> Loss | None:
    """The loss with the number that a user gave after its name, "smoothed-hinge:0.5"; None: that is no number."""
    try:
        number = float(setting)
    except ValueError:
        return None
    found = loss.adjusted(number)
    if found is None:
        raise ConfigError(
            f"the loss {loss.name!r} takes no number after its name, and {setting} is there; leave it out"
        )
    found.name = f"{loss.name}:{setting}"
    return found


LOSSES: Register[Loss] = Register(
    "loss",
    entry=named,
    right=example_of(Loss),
    must_be="a fedloom.federation.losses.Loss, or a class derived from it",
    own="module:loss",
    adjust=_adjusted,
)


@LOSSES.register("cross-entropy")
class CrossEntropy(Loss):
    """−log softmax(out)[y] for labels y = 0, 1, …"""

    tasks = ("classification",)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.logsumexp(out, -1) - out.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        p = torch.softmax(out, -1)
        return p.scatter_add_(-1, y.unsqueeze(-1), p.new_full((), -1.0).expand(*y.shape, 1))

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        """Newton's method: the Hessian I + t(diag p − ppᵀ) is diagonal but for one term."""
        s = v.clone()
        g = t * self.slope(s, y)
        for _ in range(_NEWTON):
            p = torch.softmax(s, -1)
            inverse = 1 / (1 + t * p)
            share = (p * inverse * g).sum(-1, keepdim=True) / (p * inverse).sum(-1, keepdim=True)
            step = inverse * (g + t * p * share)
            if bool((step.abs() <= _steps_end(s)).all()):
                return s - step
            s, g = _damped(lambda at: t * self.slope(at, y) + at - v, s, g, step)
        return s

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(out, -1)
        return p * (v - (p * v).sum(-1, keepdim=True))


@LOSSES.register("binary")
class Binary(Loss):
    """−y log σ(out) − (1 − y) log σ(−out) for y of 0 and 1; an unknown label (NaN) does not count."""

    tasks = ("binary", "multilabel")
    dual = Dual("logistic")

    def parts(self, y: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        known = (~torch.isnan(y)).to(y.dtype)
        return 2 * torch.nan_to_num(y) - 1, known / known.sum(-1, keepdim=True).clamp(min=1)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        known = ~torch.isnan(y)
        y = torch.nan_to_num(y)
        each = torch.clamp(out, min=0) - out * y + torch.log1p(torch.exp(-out.abs()))
        return (each * known).sum(-1) / known.sum(-1).clamp(min=1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        slope = torch.sigmoid(out).sub_(y).masked_fill_(torch.isnan(y), 0)
        return slope if y.shape[-1] == 1 else slope / (~torch.isnan(y)).sum(-1, keepdim=True).clamp(min=1)

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        """Newton's method on m − cσ(−m) = ±v for the margin m, from where its steps go one way only: that of the root.

        The left side is convex below 0 and concave above it, so the side of 0 on which the root is decides.
        """
        known = (~torch.isnan(y)).to(v.dtype)
        c = t * known / known.sum(-1, keepdim=True).clamp(min=1)
        sign = 2 * torch.nan_to_num(y) - 1
        w = sign * v
        m = torch.where(w > -c / 2, w.clamp(min=0), (w + c).clamp(max=0))
        for _ in range(_NEWTON):
            p = torch.sigmoid(-m)
            step = (m - c * p - w) / (1 + c * p * (1 - p))
            m = m - step
            if bool((step.abs() <= _steps_end(m)).all()):
                break
        return sign * m

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        p, known = torch.sigmoid(out), ~torch.isnan(y)
        return p * (1 - p) * v * known / known.sum(-1, keepdim=True).clamp(min=1)


@LOSSES.register("hinge")
class Hinge(Loss):
    """max(0, 1 − s·out) with s = 2y − 1 for y of 0 and 1."""

    tasks = ("binary",)
    link: Link = "margin"
    dual = Dual("hinge")

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.clamp(1 - (2 * y - 1) * out, min=0).mean(-1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        s = 2 * y - 1
        return torch.where(s * out < 1, -s, torch.zeros_like(s)) / y.shape[-1]

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        """As far as the margin asks, and not beyond it."""
        s = 2 * y - 1
        return v + s * torch.minimum((1 - s * v).clamp(min=0), torch.as_tensor(t / y.shape[-1], dtype=v.dtype))

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return torch.zeros_like(v)


@LOSSES.register("smoothed-hinge")
class SmoothedHinge(Loss):
    """The hinge with a parabola of width γ in the place of its kink: (1 − m − γ/2)₊ outside, (1 − m)²/(2γ) inside.

    m = s·out with s = 2y − 1 for y of 0 and 1; its slope falls from −1 to 0 for m from 1 − γ to 1. γ is 1, or the
    number after the name: "smoothed-hinge:0.5".
    """

    tasks = ("binary",)
    link: Link = "margin"

    def __init__(self, smoothing: float = 1.0) -> None:
        if not (math.isfinite(smoothing) and smoothing > 0):
            raise ConfigError(f"smoothed-hinge:{smoothing:g}: γ must be a number above 0; for γ = 0 choose 'hinge'")
        self.smoothing = smoothing
        self.dual = Dual("hinge", smoothing)

    def adjusted(self, setting: float) -> Loss:
        return SmoothedHinge(setting)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        short = torch.clamp(1 - (2 * y - 1) * out, min=0)
        inside = short.clamp(max=self.smoothing)
        return (short * inside - inside.square() / 2).mean(-1) / self.smoothing

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        s = 2 * y - 1
        return -s * ((1 - s * out) / self.smoothing).clamp(0, 1) / y.shape[-1]

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        """A share of what the margin asks, and not more than t."""
        s, c = 2 * y - 1, torch.as_tensor(t / y.shape[-1], dtype=v.dtype)
        return v + s * torch.minimum((1 - s * v).clamp(min=0) * c / (c + self.smoothing), c)

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        short = 1 - (2 * y - 1) * out
        return torch.where((short > 0) & (short < self.smoothing), v / self.smoothing, 0.0) / y.shape[-1]


@LOSSES.register("squared")
class Squared(Loss):
    """½(out − y)²."""

    tasks = ("regression", "binary")
    threshold = 0.5
    link: Link = "probability"
    dual = Dual("squared")

    def parts(self, y: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        return y, torch.full_like(y, 1 / columns)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return (out - y).square().mean(-1) / 2

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        return (out - y) / y.shape[-1]

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        """A point between v and y."""
        c = t / y.shape[-1]
        return (v + c * y) / (1 + c)

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return v / y.shape[-1]


@LOSSES.register("absolute")
class Absolute(Loss):
    """|out − y|."""

    tasks = ("regression",)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return (out - y).abs().mean(-1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.sign(out - y) / y.shape[-1]

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        """Towards y, and not beyond it."""
        return y + soft_threshold(v - y, t / y.shape[-1])

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return torch.zeros_like(v)


class OneVsRest(Loss):
    """Σ over classes of a loss of two: the one class against the rest, a column of the outputs for each.

    So each class has a model of its own, and a row is of the class whose output is the greatest.
    """

    tasks = ("classification",)
    link: Link = "margin"

    def __init__(self, each: Loss) -> None:
        self.each, self.dual = each, each.dual

    def adjusted(self, setting: float) -> Loss | None:
        each = self.each.adjusted(setting)
        return None if each is None else OneVsRest(each)

    def parts(self, y: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        target, share = self.each.parts(self._sides(y, columns, torch.float64), columns)
        return target, share * columns

    def _sides(self, y: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """1 in the column of a row's class, 0 in the others."""
        return torch.nn.functional.one_hot(y, columns).to(dtype)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        columns = out.shape[-1]
        return columns * self.each.rows(out, self._sides(y, columns, out.dtype))

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        columns = out.shape[-1]
        return columns * self.each.slope(out, self._sides(y, columns, out.dtype))

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        columns = out.shape[-1]
        return columns * self.each.curve(out, self._sides(y, columns, out.dtype), v)

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        columns = v.shape[-1]
        return self.each.prox(v, self._sides(y, columns, v.dtype), columns * t)


for _two in ("hinge", "smoothed-hinge", "binary", "squared"):
    LOSSES.register(f"ovr-{_two}", OneVsRest(LOSSES[_two]))


class Weighted(Loss):
    """Another loss, times what a row counts for by its class; for y of 0 and 1 the classes are these."""

    def __init__(self, loss: Loss, weights: Sequence[float]) -> None:
        self.loss, self.class_weights = loss, tuple(map(float, weights))
        self.name, self.tasks, self.threshold, self.link = loss.name, loss.tasks, loss.threshold, loss.link
        self.dual = loss.dual
        self._weights = torch.tensor(self.class_weights, dtype=torch.float64)

    def row_weights(self, y: Tensor) -> Tensor:
        if not y.is_floating_point():
            return self._weights[y]
        no, yes = self.class_weights or ()
        return no + (yes - no) * y[..., 0]

    def _each(self, out: Tensor, y: Tensor) -> Tensor:
        return self.row_weights(y).to(out.dtype).unsqueeze(-1)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return self.loss.rows(out, y) * self._each(out, y)[..., 0]

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        return self.loss.slope(out, y) * self._each(out, y)

    def prox(self, v: Tensor, y: Tensor, t: float | Tensor) -> Tensor:
        return self.loss.prox(v, y, t * self._each(v, y))

    def parts(self, y: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        target, share = self.loss.parts(y, columns)
        return target, share * self._each(share, y)

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return self.loss.curve(out, y, v) * self._each(out, y)

    @property
    def has_prox(self) -> bool:
        return self.loss.has_prox


def weighted(loss: Loss, given: ClassWeights | None, data: FederatedData) -> Loss:
    """The loss with what rows of each class count for; as it is where nothing is given.

    "balanced" is n/(k·n_c) for each of k classes, of whose training rows all clients together have n_c.
    """
    if given is None:
        return loss
    return Weighted(loss, _weights(given, data))


def _weights(given: ClassWeights, data: FederatedData) -> list[float]:
    """One number for each class; a ConfigError that says what is wrong."""
    if data.task not in ("classification", "binary"):
        raise ConfigError(f"class_weights are for classes, or for yes and no, and this is a {data.task} task")
    classes = data.classes or ("0", "1")
    if isinstance(given, str):
        return _balanced(given, data, classes)
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in classes]
        if unknown or len(given) < len(classes):
            near = f"have no class {unknown[0]!r}; {hint(unknown[0], classes)}" if unknown else ""
            raise ConfigError(f"class_weights {near or 'need one for each class: ' + ', '.join(classes)}")
        given = [given[name] for name in classes]
    if not isinstance(given, Sequence) or not all(isinstance(weight, int | float) for weight in given):
        raise ConfigError(f"class_weights = {given!r} cannot be: give 'balanced', or a number for each class")
    numbers = [float(weight) for weight in given]
    if len(numbers) != len(classes):
        raise ConfigError(f"class_weights has {len(numbers)} numbers for {len(classes)} classes: {', '.join(classes)}")
    if not all(math.isfinite(weight) and weight >= 0 for weight in numbers) or not any(numbers):
        raise ConfigError("class_weights must be numbers from 0 on, and not all of them 0")
    return numbers


def _balanced(given: str, data: FederatedData, classes: Sequence[str]) -> list[float]:
    if given != "balanced":
        raise ConfigError(f"class_weights = {given!r} is nothing; choose 'balanced', or give a number for each class")
    if not data.here:
        raise ConfigError(
            "class_weights = 'balanced' needs the labels of all clients' training rows, and those are on the nodes; "
            f"give a number for each class: {', '.join(classes)}"
        )
    counts = data.class_counts()
    if not bool(counts.all()):
        missing = [name for name, count in zip(classes, counts.tolist(), strict=True) if not count]
        raise ConfigError(
            f"class_weights = 'balanced' cannot be: no client has a training row of {', '.join(missing[:5])}; give a "
            "number for each class"
        )
    return [float(weight) for weight in counts.sum() / (len(counts) * counts)]


_DEFAULT: dict[Task, str] = {
    "classification": "cross-entropy",
    "binary": "binary",
    "multilabel": "binary",
    "regression": "squared",
}


def loss_for(task: Task, name: str = "auto") -> Loss:
    """The loss of that name, or the default for the task; refuses a loss that the task has no labels for."""
    name = _DEFAULT[task] if name == "auto" else name
    found = LOSSES.find(name)
    if task not in found.tasks:
        fitting = ", ".join(loss.name for loss in LOSSES.values() if task in loss.tasks)
        raise ConfigError(f"the loss {name!r} does not fit {task} data; choose one of {fitting}{_or_two(task, found)}")
    return found


def _or_two(task: Task, loss: Loss) -> str:
    """What else can be done about a loss of two classes where there are more."""
    if task != "classification" or "binary" not in loss.tasks:
        return ""
    return ', or the class that counts as 1 with the data option positive = "NAME"'


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of rows whose features others hold, as the server of a vertical federation has them."""

    y: Tensor
    loss: Loss

    def __len__(self) -> int:
        return len(self.y)

    def prox(self, v: Tensor, t: float | Tensor) -> Tensor:
        """argmin t·ℓ(s, y) + ½‖s − v‖² of every row; v and s have shape (rows, outputs)."""
        return self.loss.prox(v, self.y, t)


def with_dual(task: Task | None = None) -> list[str]:
    """The names of the losses that have a conjugate, of those for a task if one is given."""
    return [loss.name for loss in LOSSES.values() if loss.dual and (task is None or task in loss.tasks)]


def with_prox() -> list[str]:
    """The names of the losses that have a proximal step."""
    return [loss.name for loss in LOSSES.values() if loss.has_prox]


def _steps_end(s: Tensor) -> Tensor:
    """The size at which another step of Newton's method changes nothing but rounding."""
    bound: Tensor = 4 * torch.finfo(s.dtype).eps ** 0.75 * s.abs().clamp(min=1)
    return bound


def _damped(gradient: Callable[[Tensor], Tensor], s: Tensor, g: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """s − step and the gradient there; of a row whose slope would turn too steeply, ½, ¼, … of the step.

    Slopes are compared, not values: near the end values differ by less than their rounding.
    """
    downhill, t = (g * step).sum(-1, keepdim=True), torch.ones_like(g[..., :1])
    for _ in range(_HALVINGS):
        there = s - t * step
        slope = gradient(there)
        steep = (slope * step).sum(-1, keepdim=True) < -downhill / 2
        if not bool(steep.any()):
            break
        t = torch.where(steep, t / 2, t)
    return there, slope

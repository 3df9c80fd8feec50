from __future__ import annotations

import copy
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import weight_norm

from fedloom.errors import ModelError
from fedloom.federation.model import Model
from fedloom.federation.problem import Problem
from problems import Centred, dropping, make_data, make_problem, mixed


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 36, 3))


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def twice_the_same() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen_first() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    return net


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 3))
    net[0].register_forward_hook(lambda module, args, out: out + 1)
    return net


def test_the_vector_is_all_parameters_one_after_the_other_with_their_names() -> None:
    model = Model(dense)
    assert model.n == 6 * 4 + 4 + 4 * 3
    assert list(model.slices) == ["1.weight", "1.bias", "3.weight"]
    assert [(s.start, s.stop, s.shape) for s in model.slices.values()] == [
        (0, 24, (4, 6)),
        (24, 28, (4,)),
        (28, 40, (3, 4)),
    ]


def test_views_share_the_vectors_memory_and_keep_a_stacks_axis() -> None:
    model = Model(dense)
    theta = torch.zeros(model.n)
    model.views(theta)["1.bias"].fill_(5)
    assert torch.equal(torch.nonzero(theta).flatten(), torch.arange(24, 28))
    stack = torch.zeros(7, model.n)
    assert {name: tuple(v.shape) for name, v in model.views(stack).items()} == {
        "1.weight": (7, 4, 6),
        "1.bias": (7, 4),
        "3.weight": (7, 3, 4),
    }


def test_a_mask_takes_a_tensor_or_all_that_begin_with_a_name() -> None:
    model = Model(dense)
    assert torch.nonzero(model.mask(["1.bias"])).flatten().tolist() == [24, 25, 26, 27]
    assert int(model.mask(["1"]).sum()) == 28
    assert torch.equal(model.mask(["1."]), model.mask(["1.weight", "1.bias"]))
    assert not model.mask([]).any()
    with pytest.raises(ModelError, match=r"no tensor '4'; it has 1\.weight"):
        model.mask(["4"])


def test_the_last_layer_is_the_one_that_ends_the_vector() -> None:
    assert Model(dense).last_layer == ("3.weight",)
    assert make_problem("lenet").model.last_layer == ("11.weight", "11.bias")
    assert make_problem("lstm", options={"dense": 4}).model.last_layer == ("head.weight", "head.bias")


@pytest.mark.parametrize("build", [dense, convolutional])
def test_the_first_vector_depends_on_the_seed_alone(build: Callable[[], nn.Module]) -> None:
    before = torch.get_rng_state()
    a, b = Model(build), Model(build)
    torch.manual_seed(99)
    assert torch.equal(a.init(5), b.init(5))
    assert not torch.equal(a.init(5), a.init(6))
    assert torch.equal(a.init(5, torch.float64), a.init(5).double())
    torch.manual_seed(5)
    expected = torch.cat([p.detach().reshape(-1) for p in build().parameters()])
    assert torch.equal(a.init(5), expected)
    torch.set_rng_state(before)


def test_making_a_model_a_problem_and_a_vector_leaves_torchs_random_state_alone() -> None:
    before = torch.get_rng_state()
    problem = make_problem("problems:dropping")
    problem.model.init(3)
    problem.with_pool()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("build", [dense, lambda: dropping((6,), 3), lambda: mixed((6,), 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_function_of_the_vector_is_the_module(build: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    model = Model(build)
    theta = model.init(0, dtype)
    x = torch.randn(5, 6, dtype=dtype)
    out = functional_call(copy.deepcopy(model.module).to(dtype), model.views(theta), (x,))
    assert out.dtype == dtype
    torch.testing.assert_close(model(theta, x), out)


@pytest.mark.parametrize("build", [dense, convolutional, lambda: dropping((6,), 3)])
def test_a_stack_is_its_models_one_by_one(build: Callable[[], nn.Module]) -> None:
    model = Model(build)
    shape = (1, 8, 8) if build is convolutional else (6,)
    theta = torch.stack([model.init(seed) for seed in range(4)])
    x = torch.randn(4, 5, *shape)
    torch.testing.assert_close(model(theta, x), torch.stack([model(t, b) for t, b in zip(theta, x, strict=True)]))


@pytest.mark.parametrize(
    "build",
    [
        dense,
        lambda: nn.Sequential(OrderedDict(body=nn.Linear(6, 4), act=nn.ReLU(), head=nn.Linear(4, 3))),
        lambda: nn.Sequential(nn.Linear(6, 3)),
    ],
)
def test_fully_connected_models_are_recognised(build: Callable[[], nn.Module]) -> None:
    model = Model(build)
    assert model.layers is not None
    theta, x = model.init(1), torch.randn(5, 6)
    torch.testing.assert_close(model(theta, x), functional_call(model.module, model.views(theta), (x,)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Residual(nn.Linear(6, 6)),
        lambda: nn.Sequential(Doubled(6, 3)),
        lambda: nn.Sequential(weight_norm(nn.Linear(6, 3))),
        twice_the_same,
        frozen_first,
        hooked,
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
    ],
    ids=["residual", "subclass", "weight-norm", "tied", "frozen", "hooked", "act-first", "act-last", "dropout"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_that_only_look_fully_connected_are_taken_as_they_are(build: Callable[[], nn.Module]) -> None:
    model = Model(build)
    assert model.layers is None
    theta, x = model.init(1), torch.randn(5, 6)
    torch.testing.assert_close(model(theta, x), functional_call(model.module, model.views(theta), (x,)))


def test_a_module_that_exists_already_is_where_the_vector_starts_and_is_left_as_it_is() -> None:
    net = dropping((6,), 3)
    start = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    problem = Problem(make_data(), Model(lambda: net))
    assert torch.equal(problem.model.init(1), start)
    y, _ = problem.client([0, 1]).sgd(problem.model.init(1), 0.1, 4)
    assert not torch.equal(y[0], start)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in net.parameters()]), start)
    assert torch.equal(problem.model(start, problem.x), problem.model(start, problem.x))  # no dropout


def test_frozen_tensors_are_no_part_of_the_vector() -> None:
    model = Model(frozen_first)
    assert list(model.slices) == ["2.weight", "2.bias"]
    assert model.n == 15


def test_running_statistics_are_a_tail_behind_the_parameters() -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    assert (list(model.statistics), model.n, model.width) == (["1.running_mean", "1.running_var"], 27, 33)
    w, x = model.init(0), torch.randn(4, 6)
    theta = torch.cat([w, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])])
    h = nn.functional.linear(x, *(model.views(w)[k] for k in ("0.weight", "0.bias")))
    right = (h - theta[27:30]) / (theta[30:] + 1e-5).sqrt()
    assert torch.allclose(model(theta, x), right, atol=1e-6)
    assert torch.allclose(model(w, x), h / (1 + 1e-5) ** 0.5, atol=1e-6)
    assert torch.equal(model.tailed(w)[27:], torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]))
    assert model.tailed(theta) is theta
    assert model.last_layer == ("1.weight", "1.bias")


def test_statistics_over_all_batches_are_refused_with_the_remedy() -> None:
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\) has momentum=None.*give a momentum"):
        Model(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None)))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match="no parameters"):
        Model(nn.Flatten)


def test_a_model_can_be_sent_to_another_process() -> None:
    model = make_problem("lenet").model
    copy = pickle.loads(pickle.dumps(model))
    assert copy.slices == model.slices
    assert torch.equal(copy.init(4), model.init(4))


class Talkative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, mood: str) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 3)), r"cannot read rows of shape \(6,\)"),
        (convolutional, r"cannot read rows of shape \(6,\)"),
        (Talkative, r"cannot read rows of shape \(6,\).*mood"),
        (lambda: nn.Sequential(nn.Linear(6, 4)), r"puts out \(4,\) numbers a row, the data need \(3,\)"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Unflatten(1, (3, 1))), r"puts out \(3, 1\) numbers a row"),
    ],
)
def test_a_model_that_does_not_fit_the_data_stops_before_any_work(
    build: Callable[[], nn.Module], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        Problem(make_data(), Model(build))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_may_be_whole_numbers_such_as_words(dtype: torch.dtype) -> None:
    data = make_data()
    object.__setattr__(data, "x", torch.randint(10, (len(data.x), 5)))
    problem = Problem(data, Model(Words), dtype=dtype)
    theta = problem.model.init(0, dtype)
    y, _ = problem.client([0, 1, 2]).sgd(theta, 0.1, 4)
    assert y.dtype == dtype
    assert torch.isfinite(y).all()
    assert problem.client([0, 4]).grad(theta).shape == (2, problem.model.n)


class Viewing(nn.Module):
    """As in many tutorials: ``view`` on what the convolutions give, which only the usual layout allows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(channels, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.convolution(x)).view(len(x), -1))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("viewing", [False, True])
def test_images_are_laid_out_as_the_network_is_quickest_or_as_it_needs_them(channels: int, viewing: bool) -> None:
    network = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    data = make_data(shape=(channels, 8, 8))
    problem = Problem(data, Model(lambda: Viewing(channels) if viewing else network), dtype=torch.float64)
    laid_out = problem.model.laid_out(problem.x)
    assert torch.equal(laid_out, problem.x)
    assert laid_out.stride(1) == (64 if viewing else 1)
    theta = problem.model.init(0, torch.float64).requires_grad_()
    client = problem.client([1])
    rows = problem.data.splits["train"][1]
    module = problem.model.built().double()
    out = functional_call(module, problem.model.views(theta), (problem.x[rows].contiguous(),))
    torch.testing.assert_close(problem.model(theta, problem.x[rows]), out)
    loss = nn.functional.cross_entropy(out, problem.y[rows])
    torch.testing.assert_close(client.grad(theta.detach())[0], torch.autograd.grad(loss, theta)[0])


class Places(nn.Module):
    """Reads places in a list of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(x).mean(1))
        return out


def test_whole_numbers_reach_an_embedding_as_whole_numbers() -> None:
    model = Model(Places)
    theta, places = torch.stack([model.init(0), model.init(1)]), torch.randint(9, (2, 5, 6))
    expected = [functional_call(model.module, model.views(t), (rows,)) for t, rows in zip(theta, places, strict=True)]
    for x in (places, places.float()):  # a table of numbers is one of fractions, unless it says otherwise
        torch.testing.assert_close(model(theta, x), torch.stack(expected))
        torch.testing.assert_close(model(theta[0], x[0]), expected[0])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.Linear(6, 3), "fully connected layers: many clients at once"),
        (
            Places,
            r"a small module: many clients at once, in stacks by torch.func \(it has a layer Embedding \(words\)\)",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 3)),
            "one client after the other: .*Dropout",
        ),
        (lambda: nn.Sequential(nn.Linear(6, 2000), nn.ELU(), nn.Linear(2000, 3)), r"above 10,000 parameters"),
        (lambda: Centred(6, 3), "what it makes of a row depends on the others"),
    ],
)
def test_a_model_says_which_path_it_takes_and_why(build: Callable[[], nn.Module], words: str) -> None:
    assert re.search(words, Model(build).path((6,)))

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.errors import ConfigError, ModelError
from fedloom.federation.model import Model
from fedloom.federation.networks import NETWORKS, build_model, cnn
from fedloom.federation.randomness import Draw
from problems import make_data, make_problem


def built(name: str, shape: tuple[int, ...], outputs: int = 10, **options: object) -> Model:
    return build_model(name, make_data(shape=shape, outputs=outputs), **options)


def puts_out(model: Model, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(model(model.init(0), torch.randn(3, *shape)).shape)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ((3, 32, 32), 62_006),
        ((1, 32, 32), 61_706),
        ((1, 28, 28), 61_706),
        ((1, 8, 8), 156 + 2_416 + (64 * 120 + 120) + 10_164 + 850),
        ((1, 4, 4), 156 + 2_416 + (16 * 120 + 120) + 10_164 + 850),
        ((3, 64, 48), 456 + 2_416 + (16 * 13 * 9 * 120 + 120) + 10_164 + 850),
    ],
)
def test_lenet_has_the_published_number_of_parameters(shape: tuple[int, ...], parameters: int) -> None:
    model = built("lenet", shape)
    assert model.n == parameters
    assert puts_out(model, shape) == (3, 10)


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters"),
    [
        ("linear", (4, 2), {}, 8 * 10 + 10),
        ("linear", (8,), {"bias": False}, 80),
        ("mlp", (28, 28), {}, 784 * 100 + 100 + 1000 + 10),
        ("mlp", (5,), {"hidden": [4, 3], "activation": "tanh"}, 24 + 15 + 40),
        ("mlp", (5,), {"hidden": []}, 60),
        # FMNIST of METHODS.md section 1c: conv32, conv64, FC 3136 → 10
        ("cnn", (1, 28, 28), {"activation": "elu"}, (9 * 32 + 32) + (9 * 32 * 64 + 64) + 3136 * 10 + 10),
        # CIFAR-10 there: conv 32, 64, 128, FC 2048 → 10
        (
            "cnn",
            (3, 32, 32),
            {"channels": [32, 64, 128], "activation": "leaky-relu", "pool": ["max", "max", "avg"]},
            (27 * 32 + 32) + (9 * 32 * 64 + 64) + (9 * 64 * 128 + 128) + 2048 * 10 + 10,
        ),
        ("cnn", (1, 7, 9), {"channels": [2], "kernel": 5, "hidden": [6]}, 52 + (2 * 4 * 5 * 6 + 6) + 70),
        ("lstm", (7, 3), {"hidden": 5}, 4 * 5 * (3 + 5 + 2) + 60),
        ("lstm", (7, 3), {"hidden": 5, "layers": 2, "dense": 4}, 4 * 5 * 10 + 4 * 5 * 12 + 24 + 50),
    ],
)
def test_networks_have_the_sizes_that_their_options_say(
    name: str, shape: tuple[int, ...], options: dict[str, object], parameters: int
) -> None:
    model = built(name, shape, **options)
    assert model.n == parameters
    assert puts_out(model, shape) == (3, 10)


def test_leaky_relu_leaks_a_fifth() -> None:
    model = built("mlp", (1,), 2, hidden=[1], activation="leaky-relu")
    theta = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    assert model(theta, torch.tensor([[-1.0]])).tolist() == [[pytest.approx(-0.2)] * 2]


@pytest.mark.parametrize(
    ("name", "shape", "options", "complaint"),
    [
        ("lenet", (64,), {}, r"lenet reads images of shape \(channels, height, width\).*\(64,\)"),
        ("lenet", (1, 3, 3), {}, r"lenet needs images of at least 4x4, these are 3x3"),
        (
            "lstm",
            (64,),
            {},
            r"lstm reads windows of shape \(steps, columns\).*\(64,\).*data\.window = 24.*or another model",
        ),
        ("lstm", (1, 8, 8), {}, r"lstm reads windows .*\(1, 8, 8\)"),
    ],
)
def test_a_network_says_which_rows_it_reads(
    name: str, shape: tuple[int, ...], options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        built(name, shape, **options)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("resne", {}, r"no model 'resne'; did you mean 'resnet8'\?"),
        ("gpt", {}, r"no model 'gpt'; choose one of linear, mlp.*module:callable"),
        ("mlp", {"activation": "gelu"}, r"no activation 'gelu'; choose one of relu"),
        ("mlp", {"hiden": [3]}, r"'mlp' cannot be built with the options .*hiden"),
        ("cnn", {"kernel": 4}, r"odd kernel, not 4"),
        ("lstm", {"hidden": 0}, r"lstm cannot have hidden = 0; give at least 1"),
        ("lstm", {"layers": 0}, r"lstm cannot have layers = 0; give at least 1"),
        ("lstm", {"dense": -1}, r"lstm cannot have dense = -1; give at least 0"),
        ("lstm", {"dropout": 1.0}, r"lstm cannot drop a share of 1\.0; give a dropout from 0 to below 1"),
        ("lstm", {"vocabulary": 0}, r"lstm cannot have vocabulary = 0; give the number of different words"),
        ("transformer", {"width": 9, "heads": 2}, r"cannot share width = 9 among heads = 2; give a multiple of them"),
        ("transformer", {"layers": 10_000}, r"transformer cannot have layers = 10000; give at most 1,000"),
        ("cnn", {"pool": ["median"]}, r"no pool 'median'; choose one of max, avg"),
        ("nowhere:net", {}, r"'nowhere:net' cannot be imported"),
        ("problems:net", {}, r"'problems:net' cannot be imported"),
        ("problems:SIZES", {}, r"is no model: it must be a callable that takes \(shape, outputs\)"),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        built(name, (8, 8) if name in ("lstm", "transformer") else (1, 8, 8), **options)


def test_a_users_own_network_comes_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_net.py").write_text(
        "from torch import nn\n"
        "def net(shape, outputs, width=4):\n"
        "    return nn.Sequential(nn.Linear(shape[0], width), nn.GELU(), nn.Linear(width, outputs))\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    model = built("my_own_net:net", (6,), 3, width=5)
    assert model.n == 35 + 18
    assert isinstance(model.module[1], nn.GELU)


def test_every_network_has_a_docstring_for_the_help_page() -> None:
    assert all(build.__doc__ for build in NETWORKS.values())


def sigmoid(z: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-z))


@pytest.mark.parametrize(("layers", "dense"), [(1, 0), (1, 4), (2, 3)])
def test_an_lstm_is_its_cells_step_by_step_and_a_head_on_the_last_state(layers: int, dense: int) -> None:
    model = built("lstm", (6, 3), 2, hidden=5, layers=layers, dense=dense)
    theta = model.init(1, torch.float64)
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    part, steps = model.views(theta), list(x.unbind(1))
    for layer in range(layers):
        wx, wh, bx, bh = (part[f"lstm.{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        h = c = torch.zeros(4, 5, dtype=torch.float64)
        for t, step in enumerate(steps):
            i, f, g, o = (step @ wx.T + bx + h @ wh.T + bh).chunk(4, 1)
            c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
            h = steps[t] = sigmoid(o) * torch.tanh(c)
    if dense:
        h = torch.relu(h @ part["dense.0.weight"].T + part["dense.0.bias"])
    expected = h @ part["head.weight"].T + part["head.bias"]
    torch.testing.assert_close(model(theta, x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("words", [False, True])
def test_a_transformer_is_that_of_torch(words: bool) -> None:
    shape, vocabulary = ((7,), 9) if words else ((7, 3), None)
    module = built("transformer", shape, 2, width=8, heads=2, layers=2, vocabulary=vocabulary).module.double()
    x = torch.randint(0, 10, (4, 7)) if words else torch.randn(4, 7, 3, dtype=torch.float64)
    if words:
        x[:, 0], x[1, 3:] = 1, 0
    h = (module.front.table(x) if words else module.wide(x)) + module.places
    blank = x == 0 if words else torch.zeros(4, 7, dtype=torch.bool)
    for layer in module.layers:
        theirs = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True).double()
        pairs = {
            "self_attn.in_proj_": layer.looks,
            "self_attn.out_proj.": layer.mixed,
            "linear1.": layer.network[0],
            "linear2.": layer.network[2],
            "norm1.": layer.before,
            "norm2.": layer.between,
        }
        theirs.load_state_dict({f"{a}{b}": getattr(own, b) for a, own in pairs.items() for b in ("weight", "bias")})
        h = theirs.train()(h, src_key_padding_mask=blank)
    kept = (~blank).double().unsqueeze(-1)
    expected = module.head((module.norm(h) * kept).sum(1) / kept.sum(1))
    torch.testing.assert_close(module(x), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_words_that_are_none_change_nothing(name: str) -> None:
    short, long = (built(name, (steps,), 2, vocabulary=9).module for steps in (4, 6))
    weights = dict(short.named_parameters())
    long.load_state_dict({**long.state_dict(), **{n: w for n, w in weights.items() if n != "places"}})
    if name == "transformer":
        long.places.data[:4] = short.places.data
    x = torch.tensor([[3, 9, 1, 2], [5, 4, 0, 0]])
    padded = torch.cat([x, torch.zeros(2, 2, dtype=torch.int64)], 1)
    torch.testing.assert_close(long(padded), short(x))


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_leaves_predictions_alone_and_follows_the_seed_in_training(layers: int) -> None:
    options = [{"hidden": 5, "layers": layers, "dropout": share} for share in (0.0, 0.5)]
    plain, dropping = (make_problem("lstm", options=one) for one in options)
    theta = plain.model.init(0)
    assert torch.equal(plain.model(theta, plain.x), dropping.model(theta, plain.x))
    steps = [problem.client(2, Draw(seed)).sgd(theta, 0.1)[0] for problem in (plain, dropping) for seed in (7, 7, 8)]
    assert torch.equal(steps[0], steps[2])  # full batches leave nothing to chance
    assert torch.equal(steps[3], steps[4])
    assert not torch.equal(steps[3], steps[0])
    assert not torch.equal(steps[3], steps[5])


def tensorflow_same(image: Tensor, name: str) -> Tensor:
    """A 3x3 pool of stride 2 with TensorFlow's "SAME" padding, window by window."""
    height, width = image.shape

    def start(n: int) -> int:
        return max(((n + 1) // 2 - 1) * 2 + 3 - n, 0) // 2

    rows = []
    for i in range((height + 1) // 2):
        top = 2 * i - start(height)
        windows = []
        for j in range((width + 1) // 2):
            left = 2 * j - start(width)
            window = image[max(top, 0) : top + 3, max(left, 0) : left + 3]
            windows.append(window.max() if name == "max" else window.mean())
        rows.append(torch.stack(windows))
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["max", "avg"])
@pytest.mark.parametrize("shape", [(8, 8), (7, 7), (6, 5), (2, 2)])
def test_aligned_windows_are_those_of_tensorflow(name: str, shape: tuple[int, int]) -> None:
    network = cnn((1, *shape), 2, channels=[1], pool=[name], windows="aligned")
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network[2](image[None, None])[0, 0], tensorflow_same(image, name))


@pytest.mark.parametrize(
    ("shape", "outputs", "options", "flat"),
    [
        ((1, 28, 28), 10, {"channels": [32, 64], "activation": "elu"}, 3136),
        ((3, 32, 32), 10, {"channels": [32, 64, 128], "pool": ["max", "max", "avg"], "activation": "leaky-relu"}, 2048),
        ((3, 32, 32), 100, {"channels": [32, 64, 128, 256], "pool": ["max"] * 3 + ["avg"], "activation": "elu"}, 1024),
    ],
)
def test_the_networks_of_admm_fedmeta_can_be_had(
    shape: tuple[int, ...], outputs: int, options: dict[str, Any], flat: int
) -> None:
    network = cnn(shape, outputs, windows="aligned", init="truncated-normal", **options)
    assert (network[-1].in_features, network[-1].out_features) == (flat, outputs)
    assert network(torch.zeros(2, *shape)).shape == (2, outputs)
    weights = torch.cat([p.detach().flatten() for name, p in network.named_parameters() if name.endswith("weight")])
    assert float(weights.abs().max()) <= float(torch.tensor(0.2))  # of 32 bits, a little more than 0.2
    assert float(weights.std()) == pytest.approx(0.088, rel=0.02)
    assert all(bool((p == 0.1).all()) for name, p in network.named_parameters() if name.endswith("bias"))


def test_resnet18_is_the_one_that_is_used_on_small_images() -> None:
    data = make_data(shape=(3, 32, 32), outputs=10)
    model = build_model("resnet18", data)
    assert model.n == 11_173_962  # with a 3x3 convolution first, no pool, and ten classes
    assert model.width - model.n == 2 * 4_800


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (2, 5, 7)])
def test_resnets_read_small_images(shape: tuple[int, ...], norm: str) -> None:
    data = make_data(shape=shape)
    for name, blocks in (("resnet8", 3), ("resnet18", 8)):
        model = build_model(name, data, norm=norm, width=4)
        assert model(model.init(0), data.x[:2]).shape == (2, 3)
        assert len(model.module.blocks) == blocks
        assert bool(model.statistics) == (norm == "batch")
        assert any(where.norm for where in model.slices.values())


def test_a_resnet_needs_images_and_a_norm_that_there_is() -> None:
    with pytest.raises(ConfigError, match="no norm 'layer'; choose one of batch, group"):
        build_model("resnet8", make_data(shape=(1, 8, 8)), norm="layer")
    with pytest.raises(ModelError, match="resnet8 reads images"):
        build_model("resnet8", make_data())

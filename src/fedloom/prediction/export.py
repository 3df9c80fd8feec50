"""A folder that needs no fedloom: the model in a common format, how rows are read, and a program that uses both."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from fedloom.errors import ConfigError, ModelError, RunError
from fedloom.federation.networks import (
    Attention,
    Block,
    Cells,
    Places,
    Recipe,
    ResNet,
    Steps,
    Transformer,
    Words,
    last_state,
    normalised,
)
from fedloom.federation.scale import Scale
from fedloom.prediction.answers import OF, PREDICTION, SHARE, output_names
from fedloom.prediction.card import columns_of
from fedloom.prediction.predictor import Predictor
from fedloom.register import hint
from fedloom.storage.files import guarded, plain, replacing, write_json

LOADER, CARD, README = "load.py", "model.json", "README.md"
_MARK, _ABSTRACT = "# network\n", "def outputs(rows):"
_FAR = 1e-4
"""How far, at most, the outputs of an exported network may be from ours: more is no rounding."""


@dataclass(frozen=True)
class Exported:
    """What was written, and what its user should know."""

    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def export(predictor: Predictor, folder: str | Path, to: str, *, force: bool = False) -> Exported:
    """Write the model into a folder, in one of the ``FORMATS``, with all that is needed to use it without fedloom."""
    if to not in FORMATS:
        raise ConfigError(f"there is no format {to!r} to export to; {hint(to, FORMATS)}")
    path, (name, write) = Path(folder), FORMATS[to]
    with guarded(path):
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; choose another folder")
        there = {one.name for one in path.iterdir()} if path.is_dir() else set()
        if there and not (force and (path / LOADER).is_file()):
            raise RunError(f"{path} is not empty; choose another folder, or replace an exported model with --force")
        path.mkdir(parents=True, exist_ok=True)
        for old in (LOADER, CARD, README, *(file for file, _ in FORMATS.values())):
            (path / old).unlink(missing_ok=True)
    content, network, notes = write(predictor)
    with replacing(path / name) as file:
        file.write(content)
    write_json(path / CARD, _card(predictor, to))
    common = (Path(__file__).parent / "templates" / "load.py.txt").read_text(encoding="utf-8")
    before, rest = common.split(_ABSTRACT)[0], common.split(_MARK)[1]
    for file_name, words in ((LOADER, before + network.strip() + "\n" + rest), (README, _readme(predictor, to, name))):
        with replacing(path / file_name) as file:
            file.write(words.encode())
    return Exported(path, (name, CARD, LOADER, README), notes)


def _card(predictor: Predictor, to: str) -> dict[str, Any]:
    """What load.py has to know, as plain values."""
    facts, card = predictor.card.facts, predictor.card
    names = list(facts.classes or ("0", "1")) if facts.task == "binary" else list(columns_of(facts))
    if facts.task == "regression":
        alone = facts.outputs == 1 and not facts.targets
        names = [PREDICTION] if alone else [OF.format(name) for name in names]
    found = {
        "format": to,
        "task": facts.task,
        "names": names,
        "shape": facts.shape,
        "features": facts.features,
        "encoding": None if card.encoding is None or len(facts.shape) != 1 else card.encoding.record(),
        "link": facts.link,
        "threshold": facts.threshold,
        "decision": predictor.decision,
        "x": _scale(card.x_scale),
        "y": _scale(card.y_scale),
        "fill": None if card.fill is None else card.fill[0].tolist(),
        "dtype": facts.dtype,
        "tensors": {name: list(shape) for name, shape in facts.tensors.items()},
        "bias": None if predictor.bias is None else predictor.bias.tolist(),
        "shares": [SHARE.format(name) for name in output_names(facts)],
        "method": facts.method,
        "client": predictor.client,
        "fedloom": facts.fedloom,
    }
    return dict(plain(found, CARD))


def _scale(scale: Scale | None) -> dict[str, Any] | None:
    return None if scale is None else {"shift": scale.shift[0].tolist(), "factor": scale.factor[0].tolist()}


Written = tuple[bytes, str, tuple[str, ...]]
"""The content of the model's file, the part of load.py that reads it, and notes."""

_TORCH = """def outputs(rows):
    import torch

    with torch.no_grad():
        x = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), *CARD["shape"])
        return NETWORK(x.to(getattr(torch, CARD["dtype"]))).double().tolist()
"""


def _torchscript(predictor: Predictor) -> Written:
    module, example = predictor.module(), _example(predictor)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces successors
        try:
            traced = torch.jit.trace(module, (example,))  # type: ignore[no-untyped-call]
            torch.jit.save(traced, file)
            _refuse_far(traced(_example(predictor, 5)), module(_example(predictor, 5)), "TorchScript")
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(
                f"this network cannot be traced for TorchScript: {error}; export its safetensors"
            ) from error
    code = 'import torch\n\nNETWORK = torch.jit.load(str(HERE / "model.ts"))\n\n\n' + _TORCH
    return file.getvalue(), code, ()


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A library says only what went wrong: torch tells of packages that nobody asked for."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _onnx(predictor: Predictor) -> Written:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"exporting to ONNX needs {package}: install fedloom[onnx]")
    module, example, file = predictor.module().float(), _example(predictor).float(), io.BytesIO()
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                module,
                (example,),
                input_names=["x"],
                output_names=["out"],
                dynamic_shapes=({0: "rows"},),
                verbose=False,
            )
        except Exception as error:  # torch raises whatever its passes meet
            said = str(error).strip().partition("\n")[0]
            raise ModelError(f"torch cannot export this network to ONNX: {said}; choose torchscript") from error
    assert program is not None
    file.write(program.model_proto.SerializeToString())
    code = """import numpy
import onnxruntime

NETWORK = onnxruntime.InferenceSession(str(HERE / "model.onnx"), providers=["CPUExecutionProvider"])


def outputs(rows):
    x = numpy.array(rows, dtype=numpy.float32).reshape(len(rows), *CARD["shape"])
    return NETWORK.run(None, {NETWORK.get_inputs()[0].name: x})[0].tolist()
"""
    rounded = predictor.card.dtype == torch.float64
    notes = ("the network is of float64; ONNX has it in float32, which rounds its numbers",) if rounded else ()
    return file.getvalue(), code, notes


def _safetensors(predictor: Predictor) -> Written:
    tensors = {name: value.detach().clone().contiguous() for name, value in predictor.module().state_dict().items()}
    code, notes = _code(predictor)
    reader = """

def tensors():
    content = (HERE / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    kinds["I64"] = torch.int64
    found = {}
    for name, one in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, last = one["data_offsets"]
            part = bytearray(content[start + first : start + last])
            found[name] = torch.frombuffer(part, dtype=kinds[one["dtype"]]).reshape(one["shape"])
    return found
"""
    return safetensors.torch.save(tensors), _built(code, reader), notes


def _state_dict(predictor: Predictor) -> Written:
    file = io.BytesIO()
    torch.save(predictor.module().state_dict(), file)
    code, notes = _code(predictor)
    reader = '\n\ndef tensors():\n    return torch.load(HERE / "model.pt", weights_only=True)\n'
    return file.getvalue(), _built(code, reader), notes


FORMATS: dict[str, tuple[str, Callable[[Predictor], Written]]] = {
    "safetensors": ("model.safetensors", _safetensors),
    "state-dict": ("model.pt", _state_dict),
    "torchscript": ("model.ts", _torchscript),
    "onnx": ("model.onnx", _onnx),
}
"""The formats by name: the file that each is, and what writes it."""


def _built(network: str, reader: str) -> str:
    ready = 'NETWORK = network().to(getattr(torch, CARD["dtype"])).eval()\nNETWORK.load_state_dict(tensors())\n\n\n'
    return f"import torch\nfrom torch import Tensor, nn\n{reader}\n\n{network}\n\n{ready}{_TORCH}"


def _code(predictor: Predictor) -> tuple[str, tuple[str, ...]]:
    """Python that builds the network, and a note where only its author can."""
    module, build = predictor.model.module, predictor.model.build
    if type(module) is nn.Sequential and all(type(part) in (Places, *_LAYERS) for part in module):
        layers = "\n".join(f"        {_layer(part)}," for part in module)
        own = f"{inspect.getsource(Places)}\n\n" if any(isinstance(part, Places) for part in module) else ""
        return f"{own}def network():\n    return nn.Sequential(\n{layers}\n    )\n", ()
    if isinstance(module, Cells | Transformer | ResNet) and isinstance(build, Recipe):
        sources = "\n\n".join(inspect.getsource(part) for part in _SOURCES[type(module)])
        return f"import math\n\n\n{sources}\n\ndef network():\n    return {_made(module)}\n", ()
    said = "the network is your own: write into network() of load.py how it is built; onnx and torchscript need no code"
    return 'def network():\n    raise NotImplementedError("build your own network here: return YourModule(…)")\n', (
        said,
    )


_SOURCES: dict[type[nn.Module], tuple[Callable[..., Any], ...]] = {
    Cells: (Words, Steps, last_state, Cells),
    Transformer: (Words, Steps, Attention, Transformer),
    ResNet: (normalised, Block, ResNet),
}
"""What load.py needs of the networks that are more than a chain of layers."""


def _made(module: Cells | Transformer | ResNet) -> str:
    """The call that makes such a network; nothing is dropped at random where it only predicts."""
    if isinstance(module, ResNet):
        return f"ResNet({', '.join(map(repr, module.made_of))})"
    front, given = "Steps()", tuple[object, ...]()
    if isinstance(module.front, Words):
        front = f"Words({module.front.table.num_embeddings - 1}, {module.front.table.embedding_dim})"
    if isinstance(module, Cells):
        lstm = module.lstm
        dense = module.dense[0].out_features if isinstance(module.dense, nn.Sequential) else 0
        given = (lstm.input_size, module.head.out_features, lstm.hidden_size, lstm.num_layers, dense, 0.0)
    else:
        steps, width = module.places.shape
        inner = module.wide.in_features if isinstance(module.wide, nn.Linear) else width
        heads = module.layers[0].heads
        given = (inner, steps, module.head.out_features, width, heads, len(module.layers), 0.0)
    return f"{type(module).__name__}({front}, {', '.join(map(repr, given))})"


_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Linear: ("in_features", "out_features"),
    nn.Conv2d: (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
    ),
    nn.MaxPool2d: ("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    nn.ReLU: (),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.ELU: ("alpha",),
    nn.LeakyReLU: ("negative_slope",),
}
"""The layers that load.py can write down, and what each is made of."""


def _layer(part: nn.Module) -> str:
    if isinstance(part, Places):
        return f"Places({part.width}, {part.lists!r})"
    given = {name: getattr(part, name) for name in _LAYERS[type(part)]}
    if isinstance(part, nn.Linear | nn.Conv2d):
        given["bias"] = part.bias is not None
    return f"nn.{type(part).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _example(predictor: Predictor, rows: int = 3) -> Tensor:
    shape = (rows, *predictor.card.facts.shape)
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=predictor.card.dtype).reshape(shape)


def _refuse_far(found: Tensor, ours: Tensor, what: str) -> None:
    if not torch.allclose(found, ours, rtol=_FAR, atol=_FAR):
        raise ModelError(f"the network does other things in {what} for another number of rows; export its safetensors")


def _readme(predictor: Predictor, to: str, name: str) -> str:
    facts = predictor.card.facts
    needs = {"onnx": "onnxruntime"}.get(to, "torch")
    whose = f" of client {predictor.client}" if predictor.client is not None else ""
    part = (
        "\nThis is one party's part: it gives shares. `python load.py --together` adds up the shares of all parties.\n"
        if predictor.bias is not None
        else ""
    )
    columns = ", ".join(column.name for column in facts.encoding or ()) or f"rows of shape {tuple(facts.shape)}"
    return (
        f"# A model for {facts.data}{whose}\n\nTrained by {facts.method} with fedloom {facts.fedloom}. "
        f"It reads: {columns}.\n\n`{name}` has the network, `{CARD}` says how rows are read, `{LOADER}` predicts; it "
        f"needs {needs} and no fedloom:\n\n    python {LOADER} new.csv > predictions.csv\n{part}"
        + "".join(f"\n- {json.dumps(note, ensure_ascii=False)[1:-1]}" for note in facts.notes)
        + "\n"
    )

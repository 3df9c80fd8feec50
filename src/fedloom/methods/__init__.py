"""The methods, one file each, named as their papers name them; this page is the register."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from dataclasses import dataclass

from fedloom.errors import ConfigError
from fedloom.methods.admm import ADMM
from fedloom.methods.admm_fedmeta import ADMMFedMeta, ADMMMetaExact
from fedloom.methods.aso_fed import ASOFed, ASOFedD, ASOFedF
from fedloom.methods.central import Central
from fedloom.methods.fedasync import FedAsync
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedbuff import FedBuff
from fedloom.methods.fedmeta import FedAvgMeta, FedMetaMAML, FedMetaSGD
from fedloom.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fedloom.methods.fedprox import FedProx
from fedloom.methods.fedsgd import FedSGD
from fedloom.methods.local import Local
from fedloom.methods.method import Context, Method, NodeMethod, ServerMethod
from fedloom.methods.per_fedavg import PerFedAvg
from fedloom.methods.scaffold import Scaffold
from fedloom.methods.sharing_admm import SharingADMM

__all__ = [
    "ADMM",
    "REGISTER",
    "ADMMFedMeta",
    "ADMMMetaExact",
    "ASOFed",
    "ASOFedD",
    "ASOFedF",
    "Central",
    "Context",
    "Entry",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedAvgMeta",
    "FedBuff",
    "FedMetaMAML",
    "FedMetaSGD",
    "FedOpt",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "Local",
    "Method",
    "NodeMethod",
    "PerFedAvg",
    "Scaffold",
    "ServerMethod",
    "SharingADMM",
    "lookup",
    "name_of",
    "register",
]


@dataclass(frozen=True)
class Entry:
    """A line of the register."""

    name: str
    cls: type[Method]
    family: str
    paper: str
    summary: str


REGISTER: dict[str, Entry] = {}


def register(name: str, cls: type[Method], family: str, paper: str, summary: str) -> None:
    """Make a method known by name to the command line, experiment files and the conformance kit."""
    REGISTER[name] = Entry(name, cls, family, paper, summary)


def lookup(name: str) -> Entry:
    """The method of that name, or the user's own by import path ("package.module:Class")."""
    if name in REGISTER:
        return REGISTER[name]
    if ":" in name:
        return _imported(name)
    near = difflib.get_close_matches(name, REGISTER, 1)
    hint = (
        f"; did you mean {near[0]!r}?"
        if near
        else f"; there are {', '.join(sorted(REGISTER))}, and your own as module:Class"
    )
    raise ConfigError(f"there is no method {name!r}{hint}")


def _imported(path: str) -> Entry:
    """The entry of a user's own method."""
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the method {path!r} cannot be imported: {error}") from error
    right = isinstance(found, type) and issubclass(found, Method) and dataclasses.is_dataclass(found)
    if not right:
        raise ConfigError(f"{path!r} is no method: it must be a dataclass derived from fedloom.Method")
    said = (found.__doc__ or "").strip().splitlines() or [""]
    return Entry(path, found, "own", "–", said[0].rstrip("."))


def name_of(method: Method) -> str:
    """The name under which a method is registered; for a user's own, the name of its class."""
    names = [entry.name for entry in REGISTER.values() if entry.cls is type(method)]
    return names[0] if names else type(method).__name__.lower()


_MCMAHAN = "McMahan et al., AISTATS 2017"
register("fedavg", FedAvg, "averaging", _MCMAHAN, "local training, then an average of the models")
register("fedsgd", FedSGD, "averaging", _MCMAHAN, "one gradient of each client, one step of the server")
register(
    "fedprox",
    FedProx,
    "optimisation",
    "Li et al., MLSys 2020",
    "local training held near the common model; slow clients may do a part",
)
register(
    "scaffold",
    Scaffold,
    "optimisation",
    "Karimireddy et al., ICML 2020",
    "local steps corrected by control variates: no drift",
)
_REDDI = "Reddi et al., ICLR 2021"
register("fedopt", FedOpt, "optimisation", _REDDI, "any optimiser of the clients with any optimiser of the server")
register("fedavgm", FedAvgM, "optimisation", "Hsu et al., 2019", "FedAvg with momentum at the server")
register("fedadagrad", FedAdagrad, "optimisation", _REDDI, "Adagrad at the server: steps that only ever fall")
register("fedyogi", FedYogi, "optimisation", _REDDI, "Yogi at the server: steps that rise slowly again")
register("fedadam", FedAdam, "optimisation", _REDDI, "Adam at the server: steps by a fading average of squares")
register(
    "fedasync",
    FedAsync,
    "asynchronous",
    "Xie, Koyejo and Gupta, 2019",
    "each reply mixed in as it arrives, the older the less",
)
register(
    "fedbuff",
    FedBuff,
    "asynchronous",
    "Nguyen et al., AISTATS 2022",
    "a step whenever so many replies are there, whoever they are from",
)
_YUJING = "Chen et al., IEEE Big Data 2020"
register("aso-fed", ASOFed, "asynchronous", _YUJING, "clients whose rows keep arriving, each with a model of its own")
register("aso-fed-d", ASOFedD, "asynchronous", _YUJING, "the same without longer steps for slow clients")
register("aso-fed-f", ASOFedF, "asynchronous", _YUJING, "the same without feature learning at the server")
register("local", Local, "baseline", "–", "every client alone, no cooperation")
register("central", Central, "baseline", "–", "all training data pooled in one place")
register(
    "sharing-admm",
    SharingADMM,
    "optimisation",
    "Boyd et al., 2011",
    "a linear model of columns that different parties hold (vertical)",
)
register("admm", ADMM, "optimisation", "Boyd et al., 2011", "exact local solves that agree by prices (consensus ADMM)")
_CHEN = "Chen et al., 2018"
register("fedmeta-maml", FedMetaMAML, "meta-learning", _CHEN, "a start from which one step on few rows does well")
register("fedmeta-sgd", FedMetaSGD, "meta-learning", _CHEN, "the same with step sizes that are learnt too (Meta-SGD)")
register("fedavg-meta", FedAvgMeta, "meta-learning", _CHEN, "FedAvg, judged after clients have adapted its model")
register(
    "per-fedavg",
    PerFedAvg,
    "meta-learning",
    "Fallah et al., NeurIPS 2020",
    "FedAvg on the loss after one step of adaptation",
)
_YUE = "Yue et al., MobiHoc 2021"
register(
    "admm-fedmeta",
    ADMMFedMeta,
    "meta-learning",
    _YUE,
    "clients agree by prices on a start for adaptation, near an earlier model if wished",
)
register("admm-meta-exact", ADMMMetaExact, "meta-learning", _YUE, "the same, each client's subproblem solved exactly")

"""What is known of each method, by its name in the register: a new method adds a row."""

from __future__ import annotations

from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.adaptive import FEDADAGRAD, FEDADAM, FEDAVGM, FEDOPT, FEDYOGI
from fedloom.conformance.declarations.admm import ADMM
from fedloom.conformance.declarations.asynchronous import ASO_FED, ASO_FED_D, ASO_FED_F, FEDASYNC, FEDBUFF
from fedloom.conformance.declarations.averaging import FEDAVG, FEDSGD
from fedloom.conformance.declarations.baselines import CENTRAL, LOCAL
from fedloom.conformance.declarations.corrections import FEDPROX, SCAFFOLD
from fedloom.conformance.declarations.meta import FEDAVG_META, FEDMETA_MAML, FEDMETA_SGD, PER_FEDAVG
from fedloom.conformance.declarations.meta_admm import ADMM_FEDMETA, ADMM_META_EXACT
from fedloom.conformance.declarations.vertical import SHARING_ADMM

DECLARATIONS: dict[str, Declaration] = {
    "fedavg": FEDAVG,
    "fedsgd": FEDSGD,
    "fedprox": FEDPROX,
    "scaffold": SCAFFOLD,
    "fedopt": FEDOPT,
    "fedavgm": FEDAVGM,
    "fedadagrad": FEDADAGRAD,
    "fedyogi": FEDYOGI,
    "fedadam": FEDADAM,
    "fedasync": FEDASYNC,
    "fedbuff": FEDBUFF,
    "aso-fed": ASO_FED,
    "aso-fed-d": ASO_FED_D,
    "aso-fed-f": ASO_FED_F,
    "local": LOCAL,
    "central": CENTRAL,
    "admm": ADMM,
    "sharing-admm": SHARING_ADMM,
    "fedmeta-maml": FEDMETA_MAML,
    "fedmeta-sgd": FEDMETA_SGD,
    "fedavg-meta": FEDAVG_META,
    "per-fedavg": PER_FEDAVG,
    "admm-fedmeta": ADMM_FEDMETA,
    "admm-meta-exact": ADMM_META_EXACT,
}

"""What is known of each method, by its name in the register: a new method adds a row."""

from __future__ import annotations

from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.averaging import FEDAVG, FEDSGD
from fedloom.conformance.declarations.poles import CENTRAL, LOCAL

DECLARATIONS: dict[str, Declaration] = {
    "fedavg": FEDAVG,
    "fedsgd": FEDSGD,
    "local": LOCAL,
    "central": CENTRAL,
}

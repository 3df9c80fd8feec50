"""MOCHA where clients drop out: fedloom reproduce d3-faults

In every round each client gives up with a probability of 0 to 0.9, or one client always does: the paper's Figure 3. As
long as every client is heard now and then, the gap falls to nothing, later; the client that is never heard keeps its
dual numbers at zero, and the gap stays. ``--record`` and ``--quick`` are those of d3-stragglers.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

from fedloom.reproduce.systems import main, networks, ways

CHANCES = (0.0, 0.25, 0.5, 0.75, 0.9)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    mocha, (fleet, cost) = replace(ways()[0], fixed=True), networks()["LTE"]
    lines = {
        f"each drops with probability {p:g}": (
            replace(mocha, rounds=int(600 / (1 - p))),
            replace(fleet, dropout=p),
            cost,
        )
        for p in CHANCES
    }
    lines["one client always drops"] = (replace(mocha, rounds=300), replace(fleet, drops=(0,)), cost)
    main("d3-faults", {"LTE": lines}, ("hapt", "vehicle", "landmine"), Path(__file__).parent / "results")

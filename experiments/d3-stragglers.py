"""Time to a duality gap by the MOCHA paper's cost model, with WiFi, LTE and 3G: fedloom reproduce d3-stragglers

Clients are equally fast and differ in how many rows they have and how hard these are: the paper's Figure 1.
``--record`` puts what came of it into experiments/results/d3-stragglers.json, from where docs/results.md has it;
``--quick`` has three rounds of the first panel.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from fedloom.reproduce.systems import main, networks, ways

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    panels = {name: {way.name: (way, fleet, cost) for way in ways()} for name, (fleet, cost) in networks().items()}
    main("d3-stragglers", panels, ("hapt", "vehicle", "landmine"), Path(__file__).parent / "results")

"""Time to a duality gap where clients' speeds vary from round to round: fedloom reproduce d3-heterogeneity

With low variability every client has in every round 90 to 100 % of the full speed, with high 10 to 100 %: the paper's
Figure 2. MOCHA and the mini-batch methods do what they can in a clock cycle (what the client of median size, or
the largest, needs for a pass at full speed, and the messages); CoCoA waits until all have done their part, and so does
the line "MOCHA, waiting for all", which differs from MOCHA in nothing else: what that costs is the price of waiting.
``--record`` and ``--quick`` are those of d3-stragglers.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

from fedloom.reproduce.systems import Cycle, main, networks, varied, ways

CYCLES: tuple[Cycle, ...] = ("median", "largest")
LEAST = {"low variability": 0.9, "high variability": 0.1}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    waiting = replace(ways()[0], name="MOCHA, waiting for all")  # CoCoA with the same number of passes for every client
    panels = {
        f"{words}, {name}": {
            waiting.name: (waiting, varied(fleet, least), cost),
            **{
                f"{way.name}{', cycle of the ' * bool(way.in_time)}{way.in_time or ''}": (
                    way,
                    varied(fleet, least),
                    cost,
                )
                for cycle in CYCLES
                for way in ways(in_time=cycle)
            },
        }
        for words, least in LEAST.items()
        for name, (fleet, cost) in networks().items()
        if name == "LTE"
    }
    main("d3-heterogeneity", panels, ("hapt", "vehicle", "landmine"), Path(__file__).parent / "results")

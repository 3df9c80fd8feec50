"""The exchange before the first round: nodes tell sums of their training rows, and get the scale that all share.

Only counts and sums leave a node, and for a min-max scaling the least and the greatest; no row does. The sums are
added up in the order of the clients' numbers, as the simulator adds them up, so that both scale to the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from fedloom.data.scaling import Kind, Sums, common_scale, of_measured
from fedloom.deploy import reading
from fedloom.deploy.card import Card
from fedloom.deploy.link import letter
from fedloom.deploy.node import SUMS
from fedloom.deploy.roster import Roster
from fedloom.deploy.terms import Terms
from fedloom.errors import FedloomError, RunError
from fedloom.federation.data import SOURCE
from fedloom.federation.scale import Scale

log = logging.getLogger("flwr")
_FIRST: dict[Kind, tuple[str, ...]] = {
    "none": ("count", "total"),
    "standard": ("count", "total"),
    "min-max": ("count", "total", "least", "greatest"),
}
"""What is asked of nodes at first …"""
_SECOND = ("count", "total", "squares")
"""… and around the mean, once it is known."""
_SPARE = 1 << 20  # bytes that a reply may have beside its sums
_WORDS = {
    "standard": "standardised by counts, sums and sums of squares",
    "min-max": "scaled to 0…1 by the least and the greatest",
    "none": "missing features filled by counts and sums",
}


class Exchange:
    """The questions to the nodes of a roster that train, and who did not answer."""

    def __init__(self, roster: Roster, terms: Terms) -> None:
        self.roster, self.terms = roster, terms
        self.silent: dict[str, str] = {}
        """The clients that did not answer, by name, and why."""

    def agree(self) -> None:
        """Agrees on the scale, if there is one to agree on, and on the precision of numbers."""
        roster, cards = self.roster, self.roster.cards
        wide = tuple(part for part in ("x", "y") if any(part in card.wide for card in cards))
        known = roster.agreed.encoding or cards[0].known_encoding
        agreed = replace(roster.agreed, wide=wide, encoding=known)
        kind, own = cards[0].scaling, cards[0].scaling_by == "client"
        if kind != "none" and own:
            notes = (*agreed.notes, "every node scales its rows by its own training rows, and tells nothing of them")
            agreed = replace(agreed, notes=notes)
        elif kind != "none" or any(card.gaps for card in cards):
            sources = [client for client, card in enumerate(cards) if card.role == SOURCE]
            told = self._asked(sources, _FIRST[kind])
            first, scales, second = _joined(told), dict[str, Scale](), dict[str, Sums]()
            if kind == "standard":
                means = {part: sums.mean[0].nan_to_num(0.0) for part, sums in first.items()}
                told = self._asked(sorted(told), _SECOND, means)
                second = _joined(told)
            for part, sums in first.items():
                scales[part] = common_scale(kind, sums, partial(_given, second.get(part)))
            x = of_measured(scales["x"], agreed.encoding)
            note = f"{_WORDS[kind]} of {len(told)} clients"
            if self.silent:
                note += "; no answer that counts from " + ", ".join(f"{k} ({why})" for k, why in self.silent.items())
            y = scales.get("y") if kind != "none" else None
            agreed = replace(agreed, scales=(x, y), notes=(*agreed.notes, note))
        for note in agreed.notes:
            log.info("agreed: %s", note)
        roster.agree(agreed)

    def _asked(
        self, clients: Sequence[int], wanted: Sequence[str], around: Mapping[str, Tensor] | None = None
    ) -> dict[int, dict[str, Sums]]:
        """What these clients tell; those who are missing are asked again where the others are too few."""
        needed, found = min(self.terms.minimum, len(clients)), dict[int, dict[str, Sums]]()
        for _ in range(self.terms.tries):
            missing = [client for client in clients if client not in found]
            self.silent |= {self.roster.cards[client].name: "its node is away" for client in missing}
            self._ask(missing, wanted, around, found)
            if found and len(found) >= needed:
                return found
        why = "; ".join(f"{name}: {text}" for name, text in self.silent.items())
        raise RunError(
            f"{len(found)} of {len(clients)} nodes told the sums by which rows are scaled, {max(1, needed)} are needed "
            f"(minimum): {why or 'no client trains'}. See to the nodes, and start the run again"
        )

    def _ask(
        self,
        clients: Sequence[int],
        wanted: Sequence[str],
        around: Mapping[str, Tensor] | None,
        found: dict[int, dict[str, Sums]],
    ) -> None:
        own = {"function": SUMS, "wanted": list(wanted)} | ({} if around is None else {"around": dict(around)})
        link, seconds = self.roster.link, self.terms.deadline
        there = [client for client in clients if client in self.roster.here()]
        letters = [letter(self.roster.nodes[client], own, seconds, agreed=self.roster.carried) for client in there]
        asked = {number: client for number, client in zip(link.send(letters), there, strict=True) if number is not None}
        for client in asked.values():
            self.silent[self.roster.cards[client].name] = f"no reply within {seconds:g} seconds"
        for number, reply in link.wait(asked, seconds):
            card = self.roster.cards[asked[number]]
            limit = _SPARE + 8 * len(wanted) * sum(card.columns.values())
            try:
                found[asked[number]] = reading.read(reply, limit, partial(_valid, wanted=wanted, card=card))
                del self.silent[card.name]
            except FedloomError as error:
                self.silent[card.name] = str(error)
                log.warning("client %s: %s", card.name, error)


def _joined(told: Mapping[int, dict[str, Sums]]) -> dict[str, Sums]:
    """The sums of all clients that answered, in the order of their numbers."""
    every = [told[client] for client in sorted(told)]
    return {part: Sums.stacked([one[part] for one in every]).joined() for part in every[0]}


def _valid(tree: dict[str, object], wanted: Sequence[str], card: Card) -> dict[str, Sums]:
    steps = card.shape[0] if len(card.shape) == 2 else 1
    return reading.summed(tree, wanted, card.columns, card.sizes["train"] * steps)


def _given(sums: Sums | None, around: Tensor) -> Sums:
    """The sums around the mean that were asked for already."""
    assert sums is not None
    return sums

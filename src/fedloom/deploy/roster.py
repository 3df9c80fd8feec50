"""Who is in the fleet: every client has a number for good, whatever node it comes back with."""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import RecordDict

from fedloom.data.apart import Told
from fedloom.deploy.agreement import Agreed
from fedloom.deploy.card import Card, described
from fedloom.deploy.codec import Tree, encode
from fedloom.deploy.link import Link, letter
from fedloom.deploy.node import HELLO
from fedloom.deploy.reading import clean, read
from fedloom.deploy.terms import ROWS
from fedloom.errors import ConfigError, FedloomError, RunError
from fedloom.federation.data import SOURCE, FederatedData
from fedloom.storage.files import guarded, write_json
from fedloom.storage.folder import FLEET

log = logging.getLogger("flwr")
_HELLO_SECONDS = 600.0  # a node has so long to say who it is before it is asked again
_HELLO_BYTES = 16 << 20  # that it may say so in
_TWICE = "two nodes call themselves {!r}; every client needs a name of its own"
Settle = Callable[[Mapping[str, Told]], Agreed]
"""From what each client tells of its columns to how all read them."""


class Roster:
    """The clients by number, and the nodes that they are on now. ``save`` keeps it in the run's folder."""

    def __init__(self, link: Link, folder: Path, rows: int = ROWS) -> None:
        self.link, self.path, self.rows = link, folder / FLEET, rows
        self.run = uuid.uuid4().hex
        """What nodes know this run by: their memories belong to it."""
        self.cards: list[Card] = []
        self.nodes: dict[int, int] = {}
        """The node of each client, by the client's number."""
        self.agreed = Agreed()
        """How all nodes read their rows …"""
        self.carried = RecordDict()
        """… as it is sent with every message; nothing, as long as nothing was agreed."""
        self.strangers: dict[int, str] = {}
        """Nodes that cannot take part, and why."""
        self._asked: dict[int, tuple[str, float]] = {}
        self._new: dict[int, Card] = {}
        self._surveys: dict[int, Told] = {}
        """What nodes say of their columns before it is agreed how these are read."""
        self._doubles: dict[str, dict[int, Card]] = {}
        """Nodes that call themselves what others do, by that name."""
        self._data: FederatedData | None = None
        self.replaced = False
        """Whether a client is described otherwise than it was."""

    def restore(self) -> None:
        """Go on with the numbers of a run that was begun."""
        with guarded(self.path):
            saved = json.loads(self.path.read_text())
        self.run = saved["run"]
        self.cards = [Card.read(client, self.rows) for client in saved["clients"]]
        if "agreed" in saved:
            self.agree(Agreed.read(saved["agreed"]))

    def save(self) -> None:
        """Writes the numbers down, and what was agreed."""
        clients = [card.tree() for card in self.cards]
        write_json(self.path, {"run": self.run, "clients": clients, "agreed": self.agreed.tree()})

    def agree(self, agreed: Agreed) -> None:
        """From now on every message says how all nodes read their rows."""
        self.agreed, self.carried, self._data = agreed, encode(agreed.tree()), None

    def data(self) -> FederatedData:
        """The federation as it is known now: the same object until somebody joins."""
        if self._data is None or self._data.clients < len(self.cards):
            self._data = described(self.cards, self.agreed)
        return self._data

    def gather(self, wanted: int, seconds: float, settle: Settle | None = None) -> None:
        """Waits until so many clients are there, and gives them their numbers.

        Nodes that read files first say what is in their columns, and ``settle`` makes of that how all read them.
        """
        self._wait(wanted, seconds)
        if self._surveys:
            if settle is None:
                raise ConfigError("nodes ask how their columns are to be read, and the experiment does not say")
            log.info("%s nodes have said what is in their columns", len(self._surveys))
            self.agree(settle({told.name: told for told in self._surveys.values()}))
            self._surveys = {}
            self._wait(wanted, seconds)
        self._number()

    def _wait(self, wanted: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (there := self._there()) < wanted:
            refused = {node: why for node, why in self.strangers.items() if node in self.link.nodes()}
            if there == 0 and len(refused) >= max(wanted, len(self.link.nodes())):
                raise RunError(
                    f"no node can take part: {'; '.join(refused.values())}. See to the nodes, and start the run again"
                )
            if time.monotonic() >= until:
                self._refuse_unfit()
                why = "".join(f"; {text}" for text in self.strangers.values())
                raise RunError(
                    f"{there} of {wanted} nodes came within {seconds:g} seconds{why}; "
                    "start the others, or ask for fewer (nodes, minimum)"
                )
            self.link.pause()

    def _there(self) -> int:
        """How many nodes are there, with those who have just said who they are, or what is in their columns."""
        self._look()
        self._refuse_odd_columns()
        return len(self.here()) + len(self._new) - len(self._unfit()) + len(self._surveys)

    def here(self) -> list[int]:
        """The clients whose nodes are there now."""
        online = self.link.nodes()
        return [client for client, node in sorted(self.nodes.items()) if node in online]

    def look(self) -> None:
        """Takes in whoever has come since."""
        self._look()
        self._number()

    def _look(self) -> None:
        """Asks new nodes who they are, and takes note of those who have said it."""
        known, now = {*self.nodes.values(), *self._new, *self._surveys, *self.strangers}, time.monotonic()
        new = [
            node
            for node in sorted(self.link.nodes() - known)
            if node not in self._asked or now - self._asked[node][1] > _HELLO_SECONDS
        ]
        letters = [letter(node, {"function": HELLO}, _HELLO_SECONDS, agreed=self.carried) for node in new]
        for node, number in zip(new, self.link.send(letters), strict=True):
            if number is not None:
                self._asked[node] = (number, now)
        asked = {number: node for node, (number, _) in self._asked.items()}
        for number, reply in self.link.receive(asked):
            node = asked[number]
            del self._asked[node]
            try:
                said = read(reply, _HELLO_BYTES, self._said)
            except FedloomError as error:
                self._refuse(node, str(error))
                continue
            if isinstance(said, Card):
                self._new[node] = said
            elif self.carried:
                self._refuse(node, f"the node of {said.name!r} does not read its columns as all agreed")
            else:
                self._surveys[node] = said

    def _said(self, tree: Tree) -> Card | Told:
        """What a node says of itself, or of its columns."""
        if "told" in tree:
            return Told.read_tree(tree["told"])
        return self._card(tree)

    def _card(self, tree: Tree) -> Card:
        card = Card.read(tree.get("card"), self.rows)
        if card.role == SOURCE and card.sizes["train"] == 0:
            raise ConfigError(f"the node of {card.name!r} has no training rows; give it some, or role='target'")
        return card

    def _unfit(self) -> dict[int, str]:
        """Those of the new who cannot be of this fleet, and why.

        They must be like the clients that are known, and, where there are none yet, like most: one node that says
        nonsense of itself, or a name that others have, must not keep these out.
        """
        new = sorted(self._new.items(), key=_place)
        forms = Counter(card.form for _, card in new)
        known = self.cards[:1] or [card for _, card in new if forms[card.form] == max(forms.values())]
        taken, unfit = {self.cards[client].name for client in self.here()}, dict[int, str]()
        for node, card in new:
            try:
                known[0].refuse_other(card)
                if card.name in taken:
                    raise ConfigError(_TWICE.format(card.name))
                taken.add(card.name)
            except ConfigError as error:
                unfit[node] = str(error)
        return unfit

    def _refuse_odd_columns(self) -> None:
        """Nodes whose files have other columns than most cannot take part; nor can two of the same name."""
        told = sorted(self._surveys.items())
        forms = Counter(one.form for _, one in told)
        most = [one for _, one in told if forms[one.form] == max(forms.values())][:1]
        taken = set[str]()
        for node, one in told:
            why = most[0].misfit(one)
            if why is None and one.name in taken:
                why = _TWICE.format(one.name)
            taken.add(one.name)
            if why is not None and len(told) >= 2:
                del self._surveys[node]
                self._refuse(node, clean(why))

    def _refuse_unfit(self) -> None:
        for node, why in self._unfit().items():
            card = self._new.pop(node)
            if why == _TWICE.format(card.name):
                self._doubles.setdefault(card.name, {})[node] = card
            self._refuse(node, clean(why))

    def give_way(self, client: int) -> None:
        """The client's node, which has failed, makes way for another that calls itself the same, if there is one.

        Of two nodes of one name nobody can tell whose it is; but one that failed before any reply of it was taken has
        shown nothing for it.
        """
        card, online = self.cards[client], self.link.nodes()
        doubles = self._doubles.get(card.name, {})
        node = next((double for double in doubles if double in online), None)
        if node is None:
            return
        before = self.nodes[client]
        self.cards[client], doubles[before] = doubles.pop(node), card
        self.nodes[client], self.strangers[before] = node, self.strangers.pop(node)
        self._data, self.replaced = None, True
        log.warning(
            "client %s (%s) is on node %s now: that of the same name, %s, has failed before it had any reply taken",
            client,
            card.name,
            node,
            before,
        )

    def _refuse(self, node: int, why: str) -> None:
        self.strangers[node] = f"node {node}: {why}"
        log.warning("node %s cannot take part: %s", node, why)

    def _number(self) -> None:
        """Every new client gets the number of its name, or the next one."""
        self._refuse_unfit()
        names = [card.name for card in self.cards]
        for node, card in sorted(self._new.items(), key=_place):
            if card.name not in names:
                names.append(card.name)
                self.cards.append(card)
            client = names.index(card.name)
            self.nodes[client] = node
            log.info("client %s (%s) is on node %s", client, card.name, node)
        self._new = {}


def _place(pair: tuple[int, Card]) -> tuple[float, str, int]:
    """The order of nodes: in a rehearsal by the number that each was started with, else by name."""
    node, card = pair
    return (math.inf if card.client is None else card.client, card.name, node)


def agreed_in(folder: Path) -> tuple[str, ...]:
    """What the nodes of the run in a folder have agreed on, in words."""
    path = folder / FLEET
    return Agreed.read(json.loads(path.read_text())["agreed"]).notes if path.is_file() else ()

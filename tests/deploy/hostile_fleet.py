"""``make hostile``: six real nodes (SuperLink, TLS, keys), of which two are hostile in every way that we know, in turn.

The tests do the same in one process; this takes some minutes. In the first run the two spoil what they reply, one way
a round; in each of the others what they say of themselves. Every run has to end as the honest four alone would.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

DEADLINE = 60.0
_CUSTOM = f"""
import sys

if "fedloom.deploy.resident" in sys.orig_argv:
    sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
    import hostile_fleet

    hostile_fleet.turn_hostile()
"""
"""What Python runs at the start of every process of a hostile node."""


def turn_hostile() -> None:
    """In the process that answers for a hostile node: what it would say is spoilt, in the next way each time."""
    from flwr.app import Metadata, RecordDict
    from flwr.app.message import make_message
    from local_grid import Spoil
    from test_fleet import lost
    from test_hostile import CARDS, HOSTILE, WAYS, pairs, trains

    from fedloom.deploy.node import Node, asks_who

    place = HOSTILE.index(int(os.environ["HOSTILE"]))
    ways, cards = ([pair[place] for pair in pairs(all_ways)] for all_ways in (WAYS, CARDS))
    ways.sort(key=lambda way: WAYS[way][0] is lost)  # last: who is late then answers questions that are closed
    honest, answered = Node.answer, {True: 0, False: 0}
    metadata = Metadata(0, "", 0, 0, "", "", 0.0, 0.0, "train")

    def spoilt(spoil: Spoil, reply: RecordDict) -> RecordDict:
        found = spoil(make_message(metadata, content=reply), 0)
        if found is None:
            time.sleep(1.5 * DEADLINE)  # it comes, and too late
            return reply
        return found.content

    def answer(self: Node, content: RecordDict) -> RecordDict:
        reply = honest(self, content)
        said = Path(os.environ["HOSTILE_CARD"]).read_text()
        if asks_who(content):
            return spoilt(CARDS[cards[int(said)]][0], reply) if said else reply
        message = make_message(metadata, content=reply)
        kind = trains(message)
        if not answered[kind]:
            WAYS["reply, an old reply"][0](message, 0)  # it keeps the first one, which is spoilt here, to send it later
        way, answered[kind] = ways[answered[kind] % len(ways)], answered[kind] + 1
        return spoilt(WAYS[way][0], reply)

    Node.answer = answer  # type: ignore[method-assign]


def main() -> None:
    """The runs, and what came of each."""
    from test_fleet import deployed, fleet, folder_with
    from test_hostile import CARDS, HOSTILE, WAYS, pairs
    from test_rehearsal import done

    from fedloom.deploy import Terms
    from fedloom.deploy.federation import Federation
    from fedloom.deploy.project import write_app

    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "custom").mkdir()
        (here / "custom" / "sitecustomize.py").write_text(_CUSTOM)
        card = here / "card"
        card.write_text("")

        def experiment(rounds: int) -> tuple[str, Any]:
            """The experiment, and the run of the honest nodes alone."""
            place = folder_with(here / f"{rounds}-rounds", every=1)
            path = place / "experiment.toml"
            text = path.read_text().replace("clients = 3", "clients = 6").replace("rounds = 3", f"rounds = {rounds}")
            path.write_text(text)
            grid = fleet(place, 6)
            for hostile in HOSTILE:
                grid.nodes[100 + hostile].online = False
            return text, deployed(place, grid, "honest", nodes=4)

        with Federation(here / "federation") as federation:
            for client in range(6):
                if client in HOSTILE:
                    own = {"HOSTILE": str(client), "HOSTILE_CARD": str(card)}
                    os.environ |= {**own, "PYTHONPATH": f"{here / 'custom'}:{os.environ.get('PYTHONPATH', '')}"}
                federation.start_node(f"node-{client}", client=client, state=str(here / f"state-{client}"))

            def run(name: str, text: str, **terms: Any) -> tuple[dict[str, Any], list[str]]:
                app, out = here / f"{name}-app", here / f"{name}-run"
                write_app(app, text, Terms(out=str(out), deadline=DEADLINE, strikes=10_000, minimum=4, **terms))
                started = time.monotonic()
                end = done(federation, federation.run(app), out)
                print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
                rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
                return end, [text for row in rows for text in row.get("failures", [])]

            found = pairs(WAYS)
            text, honest = experiment(len(found))
            end, told = run("replies", text, nodes=6)
            unseen = [way for way, (_, why) in WAYS.items() if not any(why in text for text in told)]
            print(f"{len(WAYS)} ways to reply, {len(told)} refusals; not refused by name: {unseen or 'none'}")
            same(end, honest.summary, told)
            text, honest = experiment(2)
            seen = 0
            for number, both in enumerate(pairs(CARDS)):
                card.write_text(str(number))
                before = len(federation.log("superlink"))
                end, told = run(f"cards-{number}", text, nodes=4)
                log = federation.log("superlink")[before:]
                seen += sum(CARDS[way][1] in log for way in both)
                same(end, honest.summary, told)
            print(f"{len(CARDS)} ways to describe oneself; refused by name in the server's log: {seen}")


def same(end: dict[str, Any], honest: dict[str, Any], told: list[str]) -> None:
    """Whether the run ended as that of the honest nodes alone, and only hostile ones failed."""
    others = [text for text in told if not text.startswith(("client 4 ", "client 5 "))]
    for what in ("theta_sha256", "metrics"):
        print(f"  {what} as of the honest four alone: {end[what] == honest[what]}", flush=True)
    print(f"  failures of honest nodes: {others or 'none'}; all printable: {all(map(str.isprintable, told))}")


if __name__ == "__main__":
    main()

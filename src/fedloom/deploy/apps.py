"""The two apps that Flower runs, by the SuperLink and on every node; light, as every message starts a process."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

EXPERIMENT = "experiment.toml"
"""The file beside the app that says what is to be done."""


def client_app(folder: str | Path) -> ClientApp:
    """The ClientApp of the experiment in a folder: what Flower runs on every node."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        from fedloom.deploy.resident import answered

        reply = answered(Path(folder), dict(context.node_config), context.state, message.content)
        return Message(reply, reply_to=message)

    for kind in (app.train, app.evaluate, app.query):
        kind()(answer)
    return app


def server_app(folder: str | Path) -> ServerApp:
    """The ServerApp of the experiment in a folder: what Flower runs beside the SuperLink."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedloom.deploy.rows import fleet_experiment
        from fedloom.deploy.server import serve
        from fedloom.deploy.terms import Terms
        from fedloom.report import write_report

        run = serve(grid, fleet_experiment(Path(folder) / EXPERIMENT), Terms.read(context.run_config))
        if run.folder is not None:
            page = run.folder / "report.html"
            write_report(run.folder, page)
            page.chmod(0o600)  # a report is made for all to read; a fleet's is its owner's, like the rest of the folder

    return app

"""The folder that Flower bundles and runs: an experiment, the app, and for a fleet what its people need beside it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from fedloom import __version__
from fedloom.deploy.security import make_certificates, make_node_key, make_token, private_folder
from fedloom.deploy.terms import Terms
from fedloom.errors import ConfigError, RunError
from fedloom.storage import toml
from fedloom.storage.files import replacing

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "An experiment of fedloom on a fleet"
dependencies = ["fedloom[flower]=={version}"]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "fleet_app:server"
clientapp = "fleet_app:client"

# `flwr run . fleet --run-config "deadline=60"` changes one of these for a run.
[tool.flwr.app.config]
{config}
"""

_APP = '''\
"""Both halves of the experiment beside this file: Flower runs the one by the SuperLink, the other on every node."""

from pathlib import Path

from fedloom.deploy import client_app, server_app

client = client_app(Path(__file__).parent)
server = server_app(Path(__file__).parent)
'''

_EXPERIMENT = """\
# What is learnt, and how. `fedloom run experiment.toml --data NODE.csv --data OTHER.csv` simulates it with files that
# are here; `fedloom deploy up` with the same words rehearses it.
rounds = 20
seed = 0

[data]
{data}test = 0.2

[model]
name = "mlp"

[method]
name = "fedavg"
lr = 0.1
batch = 32
"""

_OF_FILES = """\
# Every node reads the file that it was started with (node.sh NAME ROWS): CSV, Parquet or npz. Before the first round
# the nodes agree on what the columns are, on the classes and on the scaling; no row leaves a node.
label_column = "label"
task = "classification"
# class_names = ["no", "yes"]   # all classes in their order; not given, the nodes tell which labels occur
# drop = ["patient"]            # columns to leave out
scaling = "standard"
"""

_OF_MODULE = """\
# Every node loads its own rows (data.py); here stands how they are split and scaled.
scaling = "standard"
"""

_DATA = '''\
"""The rows of one node. Flower sends this file to the nodes; what it reads stays there."""

import pandas

from fedloom.data import Table, from_arrays


def load(node_config: dict) -> tuple[Table, str]:
    """This node's rows, and the name of its client, which must never change and must be no other client's.

    ``node_config`` is what the node was started with (node.sh): its name, and the path of its rows.
    """
    rows = pandas.read_csv(node_config["rows"])
    x, y = rows.drop(columns="label").to_numpy(), rows["label"].to_numpy()
    table = from_arrays(x, y, task="classification", classes=["0", "1"], name="fleet")  # all nodes: the same classes
    return table, node_config["name"]
'''

_ENVIRONMENT = """\
# Read by the other scripts: what Flower keeps stays in this folder, for its owner alone; it calls nobody, and installs
# nothing.
umask 077
export FLWR_HOME="$PWD/state/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
mkdir -p state/flower
chmod 700 state
"""

_SERVER = """\
#!/bin/sh
# On the server: the SuperLink, which nodes connect to. TLS, only nodes whose keys were registered (run.sh), and only
# runs of who can read certificates/control.token. It listens on this machine alone; `./server.sh 0.0.0.0`: on all
# addresses, for nodes elsewhere.
set -e
cd "$(dirname "$0")"
. ./environment.sh
exec python -P -m fedloom.deploy.programs superlink certificates/control.token \\
  --host "${{1:-127.0.0.1}}" --port "${{PORT:-{port}}}" --database state/superlink.db \\
  --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.pem --ssl-keyfile certificates/server.key \\
  --enable-supernode-auth --disable-runtime-dependency-installation
"""

_RUN = """\
#!/bin/sh
# On the server, while server.sh is at work: signs the app (where ca.key is), registers the nodes' public keys, then
# runs the experiment. Started again after anything broke, the run goes on where it was.
set -e
cd "$(dirname "$0")"
. ./environment.sh
link="127.0.0.1:${{PORT:-{port}}}"
if [ -e certificates/ca.key ]; then python -P -m fedloom.deploy.programs sign . certificates/ca.key; fi
python -P -m fedloom.deploy.programs login "$link" certificates/control.token
cat > state/flower/config.toml <<END
[superlink]
default = "fleet"
[superlink.fleet]
address = "$link"
root-certificates = "$PWD/certificates/ca.crt"
END
for key in nodes/*.pub; do
  flwr supernode register "$key" fleet || echo "(registered before: $key)"
done
exec flwr run . fleet --stream "$@"
"""

_NODE = """\
#!/bin/sh
# On a node: node.sh NAME ROWS. The host needs fedloom[flower], this script, environment.sh, certificates/ca.crt and
# nodes/NAME (its secret; nobody else's). SUPERLINK is the server's address, as it is in the certificate.
set -e
cd "$(dirname "$0")"
. ./environment.sh
name="$1" rows="$(realpath "$2")"
trap 'exit 130' INT TERM
# The SuperLink lets a node that was killed in again only once it has missed it, after a minute.
until python -P -m fedloom.deploy.programs supernode certificates/ca.crt "${{NODE_PORT:-9094}}" \\
  --superlink "${{SUPERLINK:-{host}:{port}}}" --auth-supernode-private-key "nodes/$name" \\
  --node-config "name='$name' rows='$rows' state='$PWD/state/$name'"; do sleep 10; done
"""

_IGNORED = """\
certificates/
nodes/
state/
run/
"""
PORT = 9092


def write_app(folder: Path, experiment: str, terms: Terms, name: str = "rehearsal") -> None:
    """What Flower bundles: the description of the app, its two halves, the experiment."""
    config = toml.dumps(asdict(terms)).strip()
    _text(folder / "pyproject.toml", _PYPROJECT.format(name=name, version=__version__, config=config))
    _text(folder / "fleet_app.py", _APP)
    _text(folder / "experiment.toml", experiment)


def write_project(folder: Path, nodes: list[str], host: str, module: bool = False) -> None:
    """A project for a fleet: the app, certificates, a key for each node, scripts to start.

    With a ``module`` nodes load their rows by Python that is to be filled in; otherwise they read files.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is there already and not empty; nothing was changed: choose another folder")
    if bad := [name for name in nodes if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)]:
        raise ConfigError(f"a node cannot be called {bad[0]!r}: use letters, digits, '.', '_' and '-'")
    if len(set(nodes)) < len(nodes):
        raise ConfigError("two nodes have the same name; every node needs one of its own")
    folder = folder.resolve()
    private_folder(folder)
    make_certificates(folder / "certificates", [host])
    make_token(folder / "certificates" / "control.token")
    for name in nodes:
        make_node_key(folder / "nodes", name)
    terms = Terms(nodes=len(nodes), minimum=max(1, len(nodes) // 2))
    experiment = _EXPERIMENT.format(data=_OF_MODULE if module else _OF_FILES)
    write_app(folder, experiment, terms, name=_app_name(folder.name))
    if module:
        _text(folder / "data.py", _DATA)
    _text(folder / ".gitignore", _IGNORED)
    _text(folder / "environment.sh", _ENVIRONMENT)
    for script, text in (("server.sh", _SERVER), ("run.sh", _RUN), ("node.sh", _NODE)):
        _text(folder / script, text.format(port=PORT, host=host), executable=True)


def _app_name(name: str) -> str:
    """A folder's name as Flower wants an app to be called."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (found if re.match("[a-z]", found) else f"fleet-{found}")[:32].strip("-")


def _text(path: Path, text: str, executable: bool = False) -> None:
    private_folder(path.parent)
    with replacing(path) as file:
        file.write(text.encode())
    path.chmod(0o700 if executable else 0o600)

"""The report: tables, plots and the HTML page, made from runs' folders alone.

``write_report(paths, out)`` writes the page. The parts are there for notebooks too: ``find_runs`` reads the folders,
``group_runs`` gathers repeats, ``rows`` and ``rich_table`` make the table, ``learning_curves``, ``client_spread``,
``label_picture``, ``participation_chart``, ``fleet_picture``, ``feature_picture``, ``relation_picture`` and
``task_picture`` are plotly figures.
"""

from fedloom.report.continual import task_picture
from fedloom.report.export import write_table
from fedloom.report.features import feature_picture
from fedloom.report.fleet import fleet_picture
from fedloom.report.groups import Group, Target, direction, group_runs, metric_names
from fedloom.report.labels import label_picture
from fedloom.report.page import html_table, make_target, write_report
from fedloom.report.plots import client_spread, learning_curves, participation_chart
from fedloom.report.relations import relation_picture
from fedloom.report.runs import RunRecord, find_runs, read_run
from fedloom.report.table import rich_table, rows
from fedloom.report.verdict import verdict

__all__ = [
    "Group",
    "RunRecord",
    "Target",
    "client_spread",
    "direction",
    "feature_picture",
    "find_runs",
    "fleet_picture",
    "group_runs",
    "html_table",
    "label_picture",
    "learning_curves",
    "make_target",
    "metric_names",
    "participation_chart",
    "read_run",
    "relation_picture",
    "rich_table",
    "rows",
    "task_picture",
    "verdict",
    "write_report",
    "write_table",
]

"""How clients' models are related, as a heat map, a graph and a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedloom.errors import ConfigError
from fedloom.report import relation_picture, write_report
from fedloom.report.charts import drawn_curves
from fedloom.report.curves import measure_curves
from fedloom.report.groups import Group
from fedloom.report.notebook import draw
from fedloom.report.relations import Relations, relation_sheet, relation_words
from fedloom.report.runs import RunRecord


def group_of(relations, label="mocha"):
    return Group(label, (RunRecord(Path("run"), {}, "", {}, (), {"relations": relations}),))


def test_clients_of_one_group_stand_together_and_no_client_is_related_to_itself(related):
    heat = relation_picture(group_of(related(9))).data[0]
    groups = [int(name[1:]) % 3 for name in heat.x]
    assert [groups[at] for at in (0, 3, 6)] == [groups[at] for at in (2, 5, 8)]
    assert sorted(heat.x) == sorted(f"c{at}" for at in range(9))
    assert all(heat.z[at][at] is None for at in range(9))
    assert (heat.zmin, heat.zmax) == (-0.8, 0.8)
    assert heat.meta == {"diverging": True}


def test_the_graph_has_two_lines_a_client_between_the_most_strongly_related(related):
    found = related(9)
    figure = relation_picture(group_of(found), "graph")
    *lines, dots = figure.data
    assert list(dots.text) == list(relation_picture(group_of(found)).data[0].x)
    places = {(x, y): name for x, y, name in zip(dots.x, dots.y, dots.text, strict=True)}
    pairs = [
        (places[trace.x[at], trace.y[at]], places[trace.x[at + 1], trace.y[at + 1]], trace.name)
        for trace in lines
        for at in range(0, len(trace.x), 3)
    ]
    assert len(pairs) == 18
    inside = [(int(a[1:]) % 3 == int(b[1:]) % 3, name) for a, b, name in pairs]
    assert sorted(inside) == [(False, "opposite, medium")] * 9 + [(True, "alike, strong")] * 9


def test_the_table_and_the_words_have_the_same_numbers(related):
    found = {"kind": "fixed", "labels": ["graz", "lyon", "oslo"], "matrix": [[1, 0.2, -0.5], [0.2, 1, 0], [-0.5, 0, 1]]}
    sheet = relation_sheet(group_of(found))
    assert sheet.rows == (("graz", "oslo", "-0.50"), ("graz", "lyon", "0.20"), ("lyon", "oslo", "0.00"))
    said = "mocha: the most alike are graz and lyon (0.20), the least alike graz and oslo (-0.50)."
    assert relation_words(group_of(found)) == said
    many = relation_sheet(group_of(related(60)))
    assert (many.title, len(many.rows)) == ("Relations of mocha as a table, the strongest 500 of 1,770", 500)


def test_names_are_plain_text_and_equal_clients_are_drawn_too():
    names = {"kind": "mean", "labels": ["<b>a", "b", "c"], "matrix": np.ones((3, 3)).tolist()}
    for view in ("matrix", "graph"):
        assert "<b>" not in relation_picture(group_of(names), view).to_json()


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        "x",
        {"labels": ["a"], "matrix": [[1.0]]},
        {"labels": ["a", "b"], "matrix": [[1.0, 0.5]]},
        {"labels": ["a", "b"], "matrix": [[1.0, None], [0.0, 1.0]]},
        {"labels": ["a", "b"], "matrix": [[1.0, float("nan")], [0.0, 1.0]]},
        {"kind": "mean", "left_out": "201 clients are more than 200"},
    ],
)
def test_nothing_is_drawn_of_what_is_no_table_of_relations(told):
    assert relation_picture(group_of(told)) is None
    assert relation_sheet(group_of(told)) is None
    assert relation_words(group_of(told)) == ""
    with pytest.raises(ConfigError, match="nothing to draw as 'relations'"):
        draw([group_of(told)], "relations", None)


def test_a_report_shows_them_with_a_table_or_says_why_not(make_run, tmp_path, related):
    folder = make_run()
    summary = json.loads((folder / "summary.json").read_text())
    page = write_report(folder, tmp_path / "none.html").read_text()
    assert "Related clients" not in page
    (folder / "summary.json").write_text(json.dumps({**summary, "relations": related(6)}))
    page = write_report(folder, tmp_path / "some.html").read_text()
    assert "Related clients" in page
    assert "<summary>Relations of fedavg as a table</summary>" in page
    assert page.count('<td class="number">0.80</td>') == 3
    left = {"kind": "mean", "left_out": "201 clients are more than 200"}
    (folder / "summary.json").write_text(json.dumps({**summary, "relations": left}))
    assert "Not shown: 201 clients are more than 200." in write_report(folder, tmp_path / "left.html").read_text()


def test_the_matrix_is_taken_as_symmetric():
    found = Relations.of(group_of({"labels": ["a", "b"], "matrix": [[1, 0.4], [0.2, 1]]}).runs[0])
    np.testing.assert_allclose(found.matrix, [[1, 0.3], [0.3, 1]])


def test_a_duality_gap_has_a_logarithmic_axis_also_where_rounding_made_it_nothing():
    rows = [{"round": t, "measures": {"gap": v, "dual": -v}} for t, v in enumerate((1.0, 1e-3, 1e-6, -1e-17, 0.0))]
    curves = measure_curves([Group("mocha", (RunRecord(Path("run"), {}, "", {}, tuple(rows), {}),))])
    assert drawn_curves(curves, "Measure").content["log"] == {"gap": True, "dual": False}

from __future__ import annotations

import json
import re

import pytest
from jinja2 import UndefinedError

from fedloom.report.charts import Chart, Choice, Drawing
from fedloom.report.html import render, render_page
from fedloom.report.sections import Section
from fedloom.reproduce.tables import Grid, Word

NAME = "</script><b onclick='x' \"{{7*7}}"


def page(name):
    """A page of a table of experiments in which everything is called so."""
    drawing = Drawing((Choice("data", name, {name: name, "other": name}, name),), {"figures": {name: {"text": name}}})
    chart = Chart("c", drawing, alt=name, caption=name, heading=name)
    return render_page(
        "reproduction.html",
        [chart],
        title=name,
        facts=[name],
        about=[name],
        grids=[Grid(name, (name,), (name,), ((Word(name, (name,), best=True),),))],
        notes=[name],
        sections=[Section("curves", name, (chart,)), Section("none", name, (), missing=name)],
        command=name,
    )


def test_a_name_is_text_wherever_it_stands():
    text = page(NAME)
    assert "<b onclick" not in text
    assert "7*7" in text
    assert "49" not in re.sub(r"(?s)<script>.*?</script>|<style>.*?</style>|<head>.*?</head>", "", text)
    assert text.count("<") == page("harmless").count("<")


def test_json_in_a_script_cannot_end_it_and_is_read_back_as_it_was():
    inside = re.search(r'id="payload">(.*?)</script>', page(NAME), re.S)[1]
    assert json.loads(inside)["charts"]["c"]["figures"] == {NAME: {"text": NAME}}
    assert "<" not in inside


def test_a_number_that_json_does_not_have_is_refused():
    drawing = Drawing((), {"figures": {"": float("nan")}})
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_page("page.html", [Chart("c", drawing, "", "")], title="", facts=[])


def test_a_template_that_lacks_something_says_so_instead_of_showing_nothing():
    with pytest.raises(UndefinedError, match="'table' is undefined"):
        render("results.html")

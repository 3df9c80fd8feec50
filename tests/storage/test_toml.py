import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.errors import ConfigError
from fedloom.storage import toml

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


@given(st.dictionaries(texts, values, max_size=6))
@settings(deadline=None, max_examples=100)
def test_every_table_reads_back_equal(table):
    found = tomllib.loads(toml.dumps(table))
    assert found == table
    assert repr(sorted(found.items())) == repr(sorted((key, found[key]) for key in table))


@given(st.floats())
def test_every_number_reads_back_bit_by_bit(number):
    found = tomllib.loads(toml.dumps({"x": number}))["x"]
    assert isinstance(found, float)
    assert (
        math.isnan(found)
        if math.isnan(number)
        else (found, math.copysign(1, found)) == (number, math.copysign(1, number))
    )


def test_an_experiment_looks_as_a_person_would_write_it():
    experiment = {
        "name": "digits",
        "data": {"name": "digits", "clients": 20, "alpha": 0.5},
        "seed": 0,
        "channel": [{"name": "clip", "norm": 1.0}, {"name": "quantise", "bits": 8}],
        "model": {"name": "mlp", "hidden": (100, 50), "deep": {"a b": True}},
    }
    assert (
        toml.dumps(experiment)
        == """\
name = "digits"
seed = 0
channel = [
    { name = "clip", norm = 1.0 },
    { name = "quantise", bits = 8 },
]

[data]
name = "digits"
clients = 20
alpha = 0.5

[model]
name = "mlp"
hidden = [
    100,
    50,
]

[model.deep]
"a b" = true
"""
    )


def test_what_toml_cannot_express_is_named():
    with pytest.raises(ConfigError, match=r"data\.path is of type NoneType"):
        toml.dumps({"data": {"path": None}})
    with pytest.raises(ConfigError, match=r"channel\.f is of type function"):
        toml.dumps({"channel": [{"f": lambda: 0}]})
    with pytest.raises(ConfigError, match="key 3 in data is not a text"):
        toml.dumps({"data": {3: 1}})
    with pytest.raises(ConfigError, match=r"name.*not valid Unicode"):
        toml.dumps({"name": "\ud800"})
    with pytest.raises(ConfigError, match=r"data: .*not valid Unicode"):
        toml.dumps({"data": {"\ud800": 1}})

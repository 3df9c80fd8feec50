"""Where the data come from and who gets them: sources, partitions, roles, splits, and measures of how clients differ.

from fedloom.data import describe, federate
data = federate("digits", clients=20, partition="dirichlet", alpha=0.3)
print(describe(data).heterogeneity)
"""

from __future__ import annotations

from fedloom.data.align import from_parties
from fedloom.data.arrays import from_arrays, from_clients
from fedloom.data.federate import default_partition, federate
from fedloom.data.files import load_file
from fedloom.data.heterogeneity import Description, describe, gradient_heterogeneity
from fedloom.data.partition import Partition, make_partition
from fedloom.data.quadratics import optimum
from fedloom.data.register import SOURCES, STEPS, Source, fetch, load
from fedloom.data.scaling import Scaling
from fedloom.data.synthetic import synthetic_linear
from fedloom.data.table import Table

__all__ = [
    "SOURCES",
    "STEPS",
    "Description",
    "Partition",
    "Scaling",
    "Source",
    "Table",
    "default_partition",
    "describe",
    "federate",
    "fetch",
    "from_arrays",
    "from_clients",
    "from_parties",
    "gradient_heterogeneity",
    "load",
    "load_file",
    "make_partition",
    "optimum",
    "synthetic_linear",
]

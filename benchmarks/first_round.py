"""A small run on the digits, one round: what a newcomer waits for first."""

from __future__ import annotations

from fedloom.data import federate
from fedloom.engine.run import train
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.methods.fedavg import FedAvg

if __name__ == "__main__":
    data = federate("digits", clients=20)
    train(Problem(data, build_model("mlp", data)), FedAvg(), rounds=1, select=10)

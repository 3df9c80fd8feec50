"""The model in use: what its folder has to hold, predictions for new rows, and folders for those who have no fedloom.

* ``card`` is what is to be known of a model to use it without its training data.
* ``rows`` reads new rows as the training read its own; ``answers`` says what outputs mean.
* ``predictor`` is the model of a run, of one client, or one that was adapted; ``parts`` is one party's part.
* ``files`` predicts for a file, a part of its rows after the other.
* ``export`` writes a folder with the model in another format, and the program of ``templates`` that uses it.
"""

from __future__ import annotations

from fedloom.prediction.card import ModelCard
from fedloom.prediction.predictor import Predictor, decision_of

__all__ = ["ModelCard", "Predictor", "decision_of"]

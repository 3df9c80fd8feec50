"""Five hospitals, one file each: from their tables to a model that predicts without fedloom.

``python docs/hospitals.py`` makes the files, and does with fedloom's commands what the page "From hospitals' tables to a
model in use" tells. The tests run it.
"""

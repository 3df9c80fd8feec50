"""The walk of a run: select clients, broadcast, client update, aggregate, server update; then evaluate and record."""

"""The worker of a release, at a place from which `sqlqueue work` imports it."""

from tests.measurements.rolling import load

worker = load()

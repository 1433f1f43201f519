"""The worker of a release, in a module that `sqlqueue work` can import."""

from tests.measurements.rolling import load

worker = load()

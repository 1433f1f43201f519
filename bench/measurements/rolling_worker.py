"""The worker of a release, in a module that `sqlqueue work` can import."""

from bench.measurements.rolling import load

worker = load()

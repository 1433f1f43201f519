"""Fixtures and hooks of all tests, those of the bench included: see tests/support/plugin.py."""

pytest_plugins = ["tests.support.plugin"]

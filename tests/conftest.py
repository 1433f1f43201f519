"""Fixtures and hooks of all tests: see tests/support/plugin.py."""

pytest_plugins = ["tests.support.plugin"]

"""Statements in SQLAlchemy Core, made from a spec, and the types of their columns.

Nothing here is executed, and nothing here depends on an engine.
"""

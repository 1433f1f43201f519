"""The values that describe a queue: its options, states, schedules, retries and findings, and the spec made from a
model's class definition.

Nothing here builds or sends SQL.
"""

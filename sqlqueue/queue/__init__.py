"""What a queue is, as values: its options, states, schedules, retries and findings, and the spec that a model's class
definition becomes.

Nothing here builds or sends SQL.
"""

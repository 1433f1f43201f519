"""From a class with a mixin to a mapped queue: its columns, its indexes and its spec.

What an application inherits from is in mixins.
"""

"""Declaration: turns a class with a mixin into a mapped queue with columns, indexes and a spec.

This runs once, when the class is defined.  :mod:`sqlqueue.lifecycle` contains what happens to the rows afterwards, and
:mod:`sqlqueue.kinds` what each optional mixin adds to both.
"""

"""Declaration: turns a class with a mixin into a mapped queue with columns, indexes and a spec.

This runs once, when the class is defined.  What happens to the rows afterwards is in :mod:`sqlqueue.lifecycle`; what
each optional mixin adds to both is in :mod:`sqlqueue.kinds`.
"""

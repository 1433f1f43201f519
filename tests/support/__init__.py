"""Code shared by the tests. Database URLs may name the Babelfish plugin, also in child processes."""

import tests.support.babelfish  # noqa: F401  (registers it)

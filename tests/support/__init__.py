"""What the tests share.  URLs may name the plugin of Babelfish, also in child processes."""

import tests.support.babelfish  # noqa: F401  (registers it)

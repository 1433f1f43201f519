"""``sqlqueue bench``: what a worker costs and how soon it begins, measured on a database of the user's own."""

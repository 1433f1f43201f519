"""``sqlqueue bench``: measures the costs of a queue and the latency of workers on the user's database."""

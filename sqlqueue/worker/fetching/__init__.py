"""Finds out when there is work, and claims as much of it as can be run."""

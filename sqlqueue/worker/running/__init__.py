"""Calls handlers, keeps their leases alive meanwhile, and writes their outcomes."""

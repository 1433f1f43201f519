"""Errors, argument checks, logging and other helpers, none of which depends on queues."""

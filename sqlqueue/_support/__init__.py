"""Errors, checks of arguments, logging and other helpers.  Nothing here knows what a queue is."""

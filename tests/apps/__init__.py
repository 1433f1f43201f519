"""Two small applications with queues, one for each kind of session.  tests/test_apps.py talks to them over HTTP."""

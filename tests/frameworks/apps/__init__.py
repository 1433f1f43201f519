"""Two small applications with queues, one for each kind of session.  test_apps.py tests them over HTTP."""

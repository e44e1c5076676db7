"""The built-in requests. They run in an executor, and what they print is the request's log."""

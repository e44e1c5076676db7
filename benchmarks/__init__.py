"""Measures this project beside Huey on SQLite and Celery on Redis: `python -m benchmarks`."""

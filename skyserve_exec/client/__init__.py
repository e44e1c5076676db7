"""The Python SDK and the command line. Talks HTTP only; imports neither server, store nor pool."""

"""The http process: routes, streams and checks of who may talk to this server.

Room: http process. Imports the root nouns, system and store (reading only).
"""

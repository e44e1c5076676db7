"""What runs on a cluster's node by itself: the job queue and the reader of job logs.

Standard library only, Python 3.8 and newer; imports nothing of the project, hence the relative imports: the folder is
copied to the node as the package `node`, with one launcher file for each module that has a `main`.
"""

"""Perf suites of callhome: fresh pinned processes, interleaved floors, medians with their spread.

``python -m perf run --help`` and ``python -m perf compare --help`` say how it is used. Nothing
heavy is imported here: a worker pins itself to its core before numpy and zmq are loaded.
"""

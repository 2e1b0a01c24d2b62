"""Engines: the user's handlers, each in a worker process that admits by capacity and reports what
it carries.
"""

"""For tests of what is plugged into callhome: engines that behave, and suites to hold it against.

Needs nothing but callhome itself. ``python -m actors.testing dispatch module:factory`` runs the
suite of dispatches from the command line; ``actors.testing.dispatch.CHECKS`` is for pytest.
"""

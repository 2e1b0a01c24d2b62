"""Several hosts on one machine: networks of their own and the cables between them, which tests may
slow down, make lossy and cut. ``kit`` is what tests use; docs/design/025-test-hosts.md says why.
"""

"""Specs of a cluster, the node that runs them, the launcher that starts it."""

"""Shared memory inside a node: arenas of memfd segments, handles, and frames that are numpy views."""

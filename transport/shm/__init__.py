"""Shared memory inside a node: arenas of memfd segments, and frames in them."""

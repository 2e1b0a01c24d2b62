"""A module whose import fails."""

raise RuntimeError("this module refuses")

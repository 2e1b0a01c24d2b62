"""``python -m actors`` is the command ``callhome``, also where nothing is installed."""

from __future__ import annotations

import sys

from actors.cli import main

if __name__ == "__main__":
    sys.exit(main())

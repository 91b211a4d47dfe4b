"""``python -m airlab``."""

import sys

from airlab.cli import main

sys.exit(main())

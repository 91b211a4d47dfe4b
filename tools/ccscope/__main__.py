"""``python -m ccscope``."""

import sys

from ccscope.cli import main

sys.exit(main())

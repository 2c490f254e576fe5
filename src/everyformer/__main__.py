"""`python -m everyformer`."""

import sys

from everyformer.cli import main

sys.exit(main())

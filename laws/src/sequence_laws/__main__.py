"""`python -m sequence_laws`: the command."""

import sys

from sequence_laws.command import main

sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""`python -m minimind_hf` is `minimind-hf`, where the command is not on the path."""

import sys

from .cli import main

sys.exit(main())

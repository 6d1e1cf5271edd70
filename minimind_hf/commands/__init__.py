# SPDX-License-Identifier: Apache-2.0
"""Subcommands of `minimind-hf`, one per module. `cli.py` imports a module when its command is called.

Each has `main(arguments)`, which returns the exit status; an OSError or ValueError is shown to the user as a message.
Flags are fields of dataclasses, with default, help and bounds, from which `flags.py` builds a parser.
"""

# SPDX-License-Identifier: Apache-2.0
"""Subcommands of `minimind-hf`, one a module, which `cli.py` imports when it is called.

Each has `main(arguments)`, which returns the exit status; an OSError or ValueError is the user's to read. Flags are
fields of dataclasses, each with its default, help and bounds, from which `flags.py` of the package makes a parser.
"""

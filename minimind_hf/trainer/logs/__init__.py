# SPDX-License-Identifier: Apache-2.0
"""Output of a run for people: progress, completions, health, trackers, and the files of its output folder.

This package may import everything below it in the trainer, and `reports` and `health`, which do not depend on a
trainer. Code that writes or shows something during a run belongs here; code that reads it afterwards belongs in
`reports`.
"""

# SPDX-License-Identifier: Apache-2.0
"""What a run tells people while it goes: progress, completions, health, trackers, and the files of its folder.

It may import what is below in the trainer, and `reports` and `health`, which know no trainer. Something that is
written or shown during a run belongs here; what is read afterwards belongs into `reports`.
"""

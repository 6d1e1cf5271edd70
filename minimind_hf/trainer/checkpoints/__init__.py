# SPDX-License-Identifier: Apache-2.0
"""What a run writes to its output folder, and how it continues from there.

It imports the rooms below it, down to `trainer.settings`, and knows no base class and no algorithm. What a checkpoint
contains belongs in `checkpointing` and `state`, the identity of its data in `data_order`, how it is written whole in
`saving`, `atomic` and `checksums`, what is checked and restored in `resuming` and `resharding`, what goes to the Hub
in `publishing` and `card`, and who may write to the folder in `run_folder`.
"""

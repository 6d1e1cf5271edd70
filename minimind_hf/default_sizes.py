# SPDX-License-Identifier: Apache-2.0
"""The sizes of a run that nobody has set: defaults of the configs, and of `minimind-hf estimate`, which imports none.

Batches count completions, per process.
"""

GRPO = {"per_device_train_batch_size": 12, "num_generations": 6}
PPO = {"per_device_train_batch_size": 8, "num_generations": 1, "mini_batch_size": 2}
MAX_COMPLETION_LENGTH = 256  # tokens
MAX_BATCH_ROWS = 256  # completions that the torch engine decodes at a time

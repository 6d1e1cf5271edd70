# SPDX-License-Identifier: Apache-2.0
"""Training in several processes: which modes are supported, whole and sharded weights, DeepSpeed's own steps.

It imports accelerate, torch and trl, and nothing else of the trainer. What depends on how weights are sharded belongs
in `sharding`, how a rollout gets whole weights in `rollout_weights`, and what happens inside DeepSpeed's step in
`deepspeed`. How processes fail together is in `rollout.agreement`, because engines need it too.
"""

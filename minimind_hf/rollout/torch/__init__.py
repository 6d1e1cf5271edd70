# SPDX-License-Identifier: Apache-2.0
"""Rollouts in the process of the trainer.

It imports the contract of `rollout`, and `forward`. Which completions run when belongs in `scheduler`, for episodes in
`sessions`; how a token is drawn in `sampling`, `truncated` and `noise`; how a model computes the next logits in a
decoder: `cache_decoder` for any model, `static_decoder` for CUDA graphs, and `fast_decoder` with the `fast_*` modules
for the architectures that they know. Tokens that are decoded before they are drawn come from `drafts`, which asks
`guesses` what they may be and `pass_costs` whether they pay; `speculating` is their part of the engine.
"""

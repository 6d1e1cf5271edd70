# SPDX-License-Identifier: Apache-2.0
"""From token ids to log-probabilities and values, in two layouts.

`token_batch.py` is what goes in. `padded` (in `logprobs.py`) is the plain layout and the reference; `shared_prompt.py`
computes a prompt once for its completions; `layouts.py` chooses. `scoring_head.py` keeps logits small, `lean.py`
computes linear layers and norms faster on a CPU, `introspection.py` is what a model says of itself. This room imports
`algorithms` and nothing else of the project; a new layout or kernel belongs here, with its test against the plain one.
"""

# SPDX-License-Identifier: Apache-2.0
"""Rollouts from SGLang servers over HTTP.

It imports the contract, the errors, `agreement` and `exported_weights` of `rollout`, and `forward` and `models`. What
a server is asked before the first step belongs in `checks`, requests and answers in `protocol`, connections and
retries in `client`, how weights get to a server in `sync` and `broadcast`, and who asks which server when in `engine`.
"""

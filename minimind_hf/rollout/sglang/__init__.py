# SPDX-License-Identifier: Apache-2.0
"""Rollouts from SGLang servers over HTTP.

It imports the contract, the errors, `agreement` and `exported_weights` of `rollout`, and `forward` and `models`. What
a server is asked before the first step belongs in `checks`, requests and answers in `protocol`, connections and how
long to wait for a server in `client` (`Patience`), how weights get to a server in `sync` and `broadcast`, what a round
asks of which server in `rounds`, and when it is asked again in `engine` (`_mend`).
"""

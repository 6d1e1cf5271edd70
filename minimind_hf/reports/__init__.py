# SPDX-License-Identifier: Apache-2.0
"""Reports: turns the files that a run leaves behind into an HTML page and a picture of its rewards.

This room reads files and knows no trainer. It imports jinja2, matplotlib and `minimind_hf.atomic`, and never torch or
transformers. How a run's files are written and read belongs in `record`; which charts there are, and how one is drawn,
in `charts`; the page's content in `page` and its layout in `page.html.jinja`; the picture for model cards in `curve`.
"""

# SPDX-License-Identifier: Apache-2.0
"""Reports: turns the files that a run leaves behind into an HTML page and a picture of its rewards.

This room reads files and knows no trainer. It imports jinja2, bokeh, matplotlib and `minimind_hf.atomic`, and never
torch or transformers. How a run's files are written and read belongs in `record`; which charts there are in `charts`,
and the lines of one or several runs in `curves`; results and their intervals in `results` and `seeds`; the page's
content in `page`, its layout in `page.html.jinja`, its style and scripts in `assets`; the picture for model cards in
`curve`.
"""

# SPDX-License-Identifier: Apache-2.0
r"""What a text says as mathematics, read whole.

math-verify reads an expression of any kind between delimiters (`$...$`, `\(...\)`, `\boxed{...}`), but elsewhere only
numbers and arithmetic: of `1 - \sqrt{2}` it takes the 1, of `6 - 5i` the 5. So expressions that stand without
delimiters get some before it reads them. Plain numbers and arithmetic stay as they are, since it knows thousands,
currencies and percentages there; so does every text that has delimiters already.
"""

import importlib
import re
from typing import Any

_DELIMITED = re.compile(r"((?<!\\)\$[^$]+(?<!\\)\$|\\\(.+?\\\)|\\\[.+?\\\]|\\boxed.*)", re.DOTALL)
_SIGNS = str.maketrans(
    {"−": "-", "×": r"\times ", "÷": "/", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge "}
    | {"²": "^2", "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "∪": r"\cup "}
)
_FUNCTIONS = "sqrt|sin|cos|tan|cot|sec|arcsin|arccos|arctan|log|ln|exp|pi|infty|infinity|oo"
_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|([\d.]+|[A-Za-z]))|\\sqrt\s*\(([^()]*)\)")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)(?!\w)")

# Two letters may be a product of variables (xy), so only common words and units of that length are words.
_WORD = (
    r"[A-Za-z]{3,}|(?:is|it|of|so|to|an|or|in|at|by|we|if|be|as|on|no|do|my|he|up|are|"
    r"cm|mm|km|kg|mg|ml|mL|ft|lb|oz|hr|Hz|kW|pm|am)(?![A-Za-z])"
)
_TOKEN = (
    r"\\(?:text|mathrm|mathbf|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|\\."
    rf"|(?<![A-Za-z'])(?!{_WORD})[A-Za-z]{{1,2}}(?![A-Za-z])|\d|[-+*/^_=<>!|,.;:()\[\]{{}}%&\s]"
)
_RUN = re.compile(rf"(?:{_TOKEN})+", re.DOTALL)
_PLAIN = re.compile(r"[$€£¥]?(?!-\s)[-+\d.\s*/^()=%]*|[$€£¥]?-?\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?\s*\\?%?")
_LIST = re.compile(r"-?[\d./]+(?:\s*,\s*-?[\d./]+)+")
_SOLUTIONS = re.compile(r"(?:\bis|\bare|[:=])\s*$")
_WITH_UNIT = re.compile(r"[$€£]?-?[\d., /]*\d\s?[mgshlLNJWVAKCFt](?:/[A-Za-z]+)?(?:\^\{?[23]\}?)?")
_OPERATOR = r"(?:[+^]|(?<!\*)\*(?!\*))"  # two asterisks are bold type
_BROKEN = re.compile(rf"(?:{_WORD})\s*{_OPERATOR}|[A-Za-z]{{3,}}\s+-\s|{_OPERATOR}\s*(?:{_WORD})")
_NUMBERS = r"-?[\d./]*\d(?:\s*,\s*-?[\d./]*\d)*\s*,?\s*(?:and|or)\s+-?[\d./]*\d"
_ANNOUNCED_NUMBERS = re.compile(rf"(\b(?:is|are)|[:=])\s*({_NUMBERS})(?!\w)")
_AND = re.compile(r"\s*,?\s*\b(?:and|or)\b\s*")
# n/a, dates, version numbers and decimal commas, of which a part would be read, or another number.
_NOT_MATHEMATICS = re.compile(
    r"n/?a|\d+-\d+-\d+|\d+/\d+/\d+|\d+(?:\.\d+){2,}|\d{1,3}(?:[ .]\d{3})+,\d+", re.IGNORECASE
)


def expressions(text: str, seconds: int | None) -> list[Any]:
    """Reads the answer of a text: its whole expression, or the last of several.

    Args:
        text (`str`): A bare expression, or prose with one in it.
        seconds (`int`, *optional*): Time limit of the parser.

    Returns:
        `list`: Readings of one expression, each an object of sympy or its text. Two for a number with a letter that
        may be a unit or a variable (`5m`). Empty if nothing can be read.
    """
    text = _in_latex(text.strip())
    core = text.rstrip(".").strip()
    if _NOT_MATHEMATICS.fullmatch(core):
        return []
    readings = [marked(text)]
    if _WITH_UNIT.fullmatch(core):
        readings.append(core)
    parse = importlib.import_module("math_verify").parse
    return [value for reading in readings for value in _understood(parse(reading, parsing_timeout=seconds))]


def is_broken(text: str) -> bool:
    """Whether operators join words (`speed + 1`), so that no part of the text stands for the whole."""
    text = _in_latex(text)
    return _DELIMITED.search(text) is None and _BROKEN.search(re.sub(r"\\[A-Za-z]+", "", text)) is not None


def marked(text: str) -> str:
    """Puts delimiters around expressions that math-verify reads only between them."""
    if r"\begin" in text:
        text = text.replace("\n", " ")
    return "\n".join(map(_marked_line, text.split("\n")))


def _marked_line(line: str) -> str:
    parts = _DELIMITED.split(line)
    if len(parts) > 1:  # every other part has delimiters
        return "".join(part if i % 2 else _RUN.sub(_marked_run, part) for i, part in enumerate(parts))
    stripped = line.strip().rstrip(".").strip()
    whole = _AND.sub(", ", stripped)
    if _RUN.fullmatch(whole):
        return stripped if _PLAIN.fullmatch(stripped) else f"${whole}$"
    return _RUN.sub(_marked_run, _ANNOUNCED_NUMBERS.sub(lambda f: f"{f[1]} ${_AND.sub(', ', f[2])}$", line))


def _in_latex(text: str) -> str:
    text = _ROOT.sub(lambda found: rf"\sqrt{{{next(filter(None, found.groups()), '')}}}", text)
    text = _FUNCTION.sub(lambda found: "\\" + found.group(1).replace("infinity", "infty").replace("oo", "infty"), text)
    text = _ROOT.sub(lambda found: rf"\sqrt{{{next(filter(None, found.groups()), '')}}}", text.translate(_SIGNS))
    text = re.sub(r"(?<=[\w)}])\*\*(?=[\w({-])", "^", text)
    return _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)


def _marked_run(found: re.Match) -> str:
    """Marks a run of mathematical characters in prose, unless it is plain, a part of the prose or not whole."""
    run = found.group()
    core = re.sub(r"^(?:[\s,.;:!*=]|[aAI]\s)+|(?:[\s,.;:!*]|\s[aAI])+$", "", run)
    if not core or _PLAIN.fullmatch(core) or _WITH_UNIT.fullmatch(core) or not _is_balanced(core):
        return run
    announced = _SOLUTIONS.search(found.string[: found.start()] + run[: run.index(core)])
    if re.match(r"[+*/^<>]", core) or (core.startswith("- ") and not announced):
        return run
    if _LIST.fullmatch(core):
        return run.replace(core, f"${core}$") if announced or not re.search(r"\s", core) else run
    if re.fullmatch(r"[A-Za-z]", core):
        return run.replace(core, f"${core}$") if announced and found.end() == len(found.string) else run
    if not re.search(r"\\[A-Za-z]|\d|[\^=<>\[(]", core) or re.search(
        r"[,;:.]\s", re.sub(r"[(\[{].*?[)\]}]", "", core)
    ):
        return run
    return run.replace(core, f"${core}$")


def _is_balanced(text: str) -> bool:
    """Brackets of any kind: an interval opens with one and may close with another."""
    return sum(map(text.count, "([{")) == sum(map(text.count, ")]}"))


def _understood(readings: list[Any]) -> list[Any]:
    """Nothing, if the parser returned no more than the text, or a quotient by zero."""
    values = [value for value in readings if not isinstance(value, str)]
    return list(readings) if values and not any(str(value) in ("zoo", "nan") for value in values) else []

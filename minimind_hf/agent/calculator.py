# SPDX-License-Identifier: Apache-2.0
"""A calculator for models: it walks the syntax tree of an expression and never runs code."""

import ast
import math
import operator
from collections.abc import Callable

LONGEST = 500  # characters of an expression
DEEPEST = 60  # operations inside each other
MOST_BITS = 4096  # of a whole number, some 1,230 digits

Number = int | float

_SPELLINGS = str.maketrans({"×": "*", "÷": "/", "−": "-"})
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculate(expression: str) -> str:
    """Calculates the value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, for example "(3 + 4) * 12".

    Returns:
        The value.
    """
    if not isinstance(expression, str):
        raise ValueError(f"the expression must be a text such as '3 * 4', not {type(expression).__name__}.")
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters; at most {LONGEST} are calculated.")
    try:
        tree = ast.parse(expression.translate(_SPELLINGS).strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"{expression!r} is no arithmetic expression such as '(3 + 4) * 12'.") from None
    try:
        return _text(_value(tree.body, DEEPEST))
    except ZeroDivisionError:
        raise ValueError("division by zero.") from None
    except OverflowError:
        raise ValueError("a number in this calculation is too large.") from None


def _value(node: ast.expr, depth: int) -> Number:
    if depth == 0:
        raise ValueError(f"more than {DEEPEST} operations are nested.")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand, depth - 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        return _bounded(_combined(node.op, _value(node.left, depth - 1), _value(node.right, depth - 1)))
    raise ValueError(f"{ast.unparse(node)!r} cannot be calculated; only numbers, + - * / // % ** and parentheses can.")


def _combined(operation: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(operation, ast.Div):
        whole = isinstance(left, int) and isinstance(right, int) and left % right == 0
        return left // right if whole else left / right
    if isinstance(operation, ast.Pow):
        return _power(left, right)
    if isinstance(operation, ast.BitXor):
        raise ValueError("'^' is not known; powers are written with **, for example 2 ** 10.")
    if type(operation) not in _BINARY:
        raise ValueError("only the operations + - * / // % ** are known.")
    return _BINARY[type(operation)](left, right)


def _power(base: Number, exponent: Number) -> Number:
    # A bound before the calculation: 9 ** 9 ** 9 would run for hours.
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1 and exponent > 0:
        if base.bit_length() * exponent > 2 * MOST_BITS:
            raise OverflowError
        return base**exponent
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) <= 1 and exponent > 0:
        return base if exponent % 2 else abs(base)
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError(f"{base} ** {exponent} is not a real number.")
    return value


def _bounded(value: Number) -> Number:
    too_large = value.bit_length() > MOST_BITS if isinstance(value, int) else not math.isfinite(value)
    if too_large:
        raise OverflowError
    return value


def _text(value: Number) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value) if isinstance(value, int) else f"{value:.12g}"

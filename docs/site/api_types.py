# SPDX-License-Identifier: Apache-2.0
"""Types on the page of the Python interface: those of the signatures, linked, instead of docstrings' quoted words.

Docstrings say types for readers of the code: `(`Tensor` of shape `(N, C)`, *optional*)`. On the site a signature says
the type and its default, so what is left of these words is a shape, which goes to the description. `[`Name`]` becomes
a link where the page shows that name, and a page that a docstring names becomes a link to it.
"""

import re
from collections.abc import Iterator
from typing import Any

from griffe import (
    Docstring,
    DocstringParameter,
    DocstringReturn,
    DocstringSection,
    DocstringSectionKind,
    Extension,
    Module,
    Object,
    ParameterKind,
)

_NAMED = (DocstringSectionKind.parameters, DocstringSectionKind.attributes)
_RETURNED = (DocstringSectionKind.returns, DocstringSectionKind.yields)
_PASSED_ON = (ParameterKind.var_positional, ParameterKind.var_keyword)  # to the base, which says what they are
_ONE_ITEM = {"returns_multiple_items": False, "returns_named_value": False, "warn_unknown_params": False}
_SHAPE = re.compile(r"((?:of (?:the )?shape|with) .*?)(?:, \*optional\*.*)?$")
_UNIMPORTANT = re.compile(r",? ?\*optional\*( each)?|,? ?defaults to .*$")


class Types(Extension):
    """Run by mkdocstrings when it has loaded the package."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        found = list(_objects(pkg))
        known = _by_name(found)
        for each in found:
            if each.docstring:  # `parsed` is a cached property, which templates read
                each.docstring.__dict__["parsed"] = _sections(each, each.docstring, known)


def _by_name(found: list[Object]) -> dict[str, Object | None]:
    """By name, and by class and name. `None` for names of several."""
    known: dict[str, Object | None] = {}
    for each in found:
        if each.is_class or each.is_function or each.is_attribute:
            names = [each.name, f"{each.parent.name}.{each.name}"] if each.parent.is_class else [each.name]
            known.update((name, None if name in known else each) for name in names)
    return known


def _objects(parent: Object) -> Iterator[Object]:
    for member in list(parent.members.values()):
        if not member.is_alias:
            yield member
            if member.is_module or member.is_class:
                yield from _objects(member)


def _sections(owner: Object, docstring: Docstring, known: dict[str, Object | None]) -> list[DocstringSection]:
    sections = docstring.parse("google", warnings=False, **_ONE_ITEM)
    for section in sections:
        if section.kind in _NAMED:
            section.value = [each for item in section.value for each in _split(item)]
            for item in section.value:
                _settle(item, *_declared(owner, item.name))
        elif section.kind in _RETURNED:
            for item in section.value:
                _settle_returned(item, getattr(owner, "returns", None))
        if section.kind is DocstringSectionKind.text:
            section.value = _linked(section.value, owner, known)
        elif isinstance(section.value, list):
            for item in section.value:
                item.description = _linked(item.description, owner, known)
    return sections


def _linked(text: str, owner: Object, known: dict[str, Object | None]) -> str:
    """Makes links of `[`Name`]`, where there is one of that name or one beside the owner, and of names of pages."""
    beside = owner if owner.is_class or owner.is_module else owner.parent

    def link(found: re.Match) -> str:
        shown = found[2].rpartition(".")[2] if found[1] else found[2]
        meant = beside.members.get(found[2]) or known.get(found[2])
        if meant is None:
            return f"`{shown}`"
        return f'<autoref identifier="{meant.path}" optional><code>{shown}</code></autoref>'

    text = re.sub(r"\[`(~?)([\w.]+)`\](?![\[(])", link, text)
    return re.sub(r"(?<![\w/(])docs/([\w-]+)\.md\b", r"[docs/\1.md](\1.html)", text)


def _split(item: DocstringParameter) -> Iterator[DocstringParameter]:
    """`low (`float`), high (`float`): ...` is two parameters with one description."""
    whole = f"{item.name} ({item.annotation})" if isinstance(item.annotation, str) else item.name
    parts = re.split(r"(?<=\)), (?=\w+ \()|(?<!\)), (?=\w+(?:,|$))", whole)
    for part in parts if len(parts) > 1 else ():
        name, _, words = part.partition(" ")
        yield type(item)(name, annotation=words[1:-1] or None, description=item.description)
    if len(parts) == 1:
        yield item


def _declared(owner: Object, name: str) -> tuple[Any, Any]:
    """What the code says of a parameter or attribute: its annotation, and its default. A subclass may pass it on."""
    parameters = [
        each.parameters[name]
        for each in _with_bases(owner)
        if name in getattr(each, "parameters", ()) and each.parameters[name].kind not in _PASSED_ON
    ]
    members = [each.members[name] for each in _with_bases(owner) if each.is_class and name in each.members]
    own = members if members and members[0].parent is owner else []
    annotations = [getattr(each, "annotation", None) for each in (*own, *parameters, *members)]
    return next(filter(None, annotations), None), parameters[0].default if parameters else None


def _with_bases(owner: Object) -> Iterator[Object]:
    yield owner
    for base in owner.resolved_bases if owner.is_class else ():
        yield from _with_bases(base)


def _settle(item: DocstringParameter, annotation: Any, default: Any) -> None:
    words = item.annotation if isinstance(item.annotation, str) else ""
    item.annotation = annotation or _plain(words) or item.annotation or None
    item.value = default
    if shape := _SHAPE.search(words):
        item.description = f"{shape[1][0].upper()}{shape[1][1:]}. {item.description}"


def _settle_returned(item: DocstringReturn, declared: Any) -> None:
    """What stands before the colon is a type, or the beginning of a sentence."""
    if not isinstance(item.annotation, str) or item.annotation == str(declared):
        return
    words, item.annotation = item.annotation, declared or _plain(item.annotation)
    if shape := _SHAPE.search(words):
        item.description = f"{shape[1][0].upper()}{shape[1][1:]}: {item.description}"
    elif not re.fullmatch(r"\[?`[^`]*`\]?((,| or) \[?`[^`]*`\]?)*(, \*optional\*)?", words):
        item.description = f"{words}: {item.description}"


def _plain(words: str) -> str:
    """Types that only a docstring says, as they would be written in a signature."""
    words = _UNIMPORTANT.sub("", _SHAPE.sub("", words))
    return re.sub(r"\[`(\w+)`\]", r"\1", words).replace("`", "").replace(" or ", " | ").strip(" ,")

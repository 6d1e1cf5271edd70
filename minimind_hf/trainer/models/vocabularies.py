# SPDX-License-Identifier: Apache-2.0
"""Whether two models mean the same by the same ids, asked of their configs and tokenizers, not of their weights.

A distillation compares distributions token by token, so a teacher with another vocabulary would teach nonsense.
"""

from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

_SHOWN = 3  # tokens in an error
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "merges.txt")


def check_vocabulary(
    size: int,
    tokenizer: PreTrainedTokenizerBase,
    teacher: str,
    base: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> None:
    """Refuses a teacher, before it is loaded, that does not have the student's vocabulary.

    Args:
        size (`int`): Ids that the student embeds.
        tokenizer (`PreTrainedTokenizerBase`): The student's.
        teacher (`str`): Name or folder of the teacher.
        base (`str`, *optional*): The model that it is an adapter for, if it is one.
        trust_remote_code (`bool`): Run code that comes with the teacher.
        revision (`str`, *optional*): The teacher's.

    Raises:
        ValueError: Naming both sizes, or tokens and their ids.
    """
    options = {"trust_remote_code": trust_remote_code}
    places = [(teacher, {**options, "revision": revision}), *([(base, options)] if base else [])]
    place, own_options = places[-1]
    check_sizes(size, AutoConfig.from_pretrained(place, **own_options).get_text_config().vocab_size, teacher)
    for place, own_options in places:
        if _has_tokenizer(place):
            check_same_tokens(tokenizer, AutoTokenizer.from_pretrained(place, **own_options), teacher)
            return


def _has_tokenizer(name: str) -> bool:
    """Whether a place comes with a tokenizer: a repository of the Hub does, a folder need not."""
    folder = Path(name)
    return not folder.is_dir() or any((folder / file).is_file() for file in _TOKENIZER_FILES)


def check_sizes(student: int, teacher: int, name: str) -> None:
    """Refuses a teacher with another number of ids.

    Raises:
        ValueError: Naming both numbers.
    """
    if student != teacher:
        raise ValueError(
            f"The teacher {name} has a vocabulary of {teacher} ids, the student one of {student}. They are compared "
            "over the whole vocabulary, so both must have the same. Take a teacher of the student's family; if their "
            "tokenizers are the same and only the embeddings are padded differently, call "
            "model.resize_token_embeddings on one of them and save it."
        )


def check_same_tokens(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, name: str) -> None:
    """Refuses a teacher whose tokenizer has a token of the student's under another id, or another token under an id.

    A token that only one of them knows is no contradiction.

    Raises:
        ValueError: Naming some of them.
    """
    own, other = student.get_vocab(), teacher.get_vocab()
    tokens_of_teacher = {number: token for token, number in other.items()}
    found = []
    for token, number in sorted(own.items(), key=lambda pair: pair[1]):
        if other.get(token, number) != number:
            found.append(f"{token!r} is {number} for the student and {other[token]} for the teacher")
        elif tokens_of_teacher.get(number, token) != token:
            found.append(f"{number} is {token!r} for the student and {tokens_of_teacher[number]!r} for the teacher")
    if found:
        raise ValueError(
            f"The teacher {name} has another tokenizer, which maps {len(found)} tokens differently: "
            f"{'; '.join(found[:_SHOWN])}. Their distributions cannot be compared token by token. Take a teacher with "
            "the student's tokenizer."
        )

# SPDX-License-Identifier: Apache-2.0
"""Data for the whole journey, from an untrained model to a chat: a small world of questions in Chinese and English.

    python recipes/journey/small_world.py outputs/journey/data

Sums, comparisons, opposites and days of the week, each asked in several ways. In the supervised data half of the
answers are curt and half are courteous, and three out of four come after a thought. The preferences say that a
courteous, right answer in the language of the question is better than a curt, wrong or foreign one. So a reward model
can learn what a good answer is, and reinforcement learning has something to improve. A few conversations call a tool.
Held-out questions are in none of the other files. Everything is a pure function of the seed.

Files, in MiniMind's formats: pretrain.jsonl (`text`), sft.jsonl (`conversations`), preferences.jsonl and
preferences_held_out.jsonl (`chosen`, `rejected`), prompts.jsonl and held_out.jsonl (`conversations`, `answer`).
"""

import argparse
import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

OPPOSITES = {
    "en": "big small, hot cold, up down, day night, old new, fast slow, open closed, full empty, rich poor, "
    "happy sad, long short, wet dry",
    "zh": "大 小, 热 冷, 上 下, 黑 白, 新 旧, 快 慢, 开 关, 多 少, 高 低, 远 近, 长 短, 左 右",
}
DAYS = {
    "en": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "zh": [f"星期{day}" for day in "一二三四五六日"],
}
WEATHER = {"en": (("Paris", "Rome", "Oslo"), ("sunny", "rainy")), "zh": (("北京", "上海", "广州"), ("晴", "雨"))}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
COURTESY = {"en": "Glad to help!", "zh": "很高兴为您解答。"}


@dataclass(frozen=True)
class Question:
    """A question with its answer in three lengths.

    Args:
        language (`str`): `"en"` or `"zh"`.
        texts (`tuple[str, ...]`): Ways to ask.
        thought (`str`): The thought before the answer.
        sentence (`str`): The answer as a sentence, with `{}` for the answer.
        answer (`str`): The answer alone.
        wrong (`str`): A wrong answer.
    """

    language: str
    texts: tuple[str, ...]
    thought: str
    sentence: str
    answer: str
    wrong: str

    def courteous(self, right: bool = True) -> str:
        space = " " if self.language == "en" else ""
        return self.sentence.format(self.answer if right else self.wrong) + space + COURTESY[self.language]


def questions() -> list[Question]:
    """All questions of the world."""
    pairs = list(combinations_with_replacement(range(10, 60), 2))
    random.Random(0).shuffle(pairs)
    found = [make(*pair) for pair in pairs[:1000] for make in (_sum_en, _sum_zh)]
    unequal = [pair for pair in pairs[1000:] if pair[0] != pair[1]]
    for a, b in unequal[:150]:
        found += [make(*pair) for pair in ((a, b), (b, a)) for make in (_comparison_en, _comparison_zh)]
    for language in ("en", "zh"):
        opposites = [tuple(pair.split()) for pair in OPPOSITES[language].split(",")]
        words = [word for pair in opposites for word in pair]
        for first, second in opposites:
            found += [_opposite(language, first, second, words), _opposite(language, second, first, words)]
        found += [_next_day(language, index) for index in range(7)]
    return found


def _columns(a: int, b: int) -> tuple[str, str]:
    """A sum column by column: the ones, then the tens with the carry."""
    (tens_a, ones_a), (tens_b, ones_b) = divmod(a, 10), divmod(b, 10)
    ones = ones_a + ones_b
    carry = ones // 10
    return f"{ones_a}+{ones_b}={ones}", f"{tens_a}+{tens_b}+{carry}={tens_a + tens_b + carry}"


def _sum_en(a: int, b: int) -> Question:
    ones, tens = _columns(a, b)
    texts = (f"What is {a} plus {b}?", f"{a} + {b} = ?")
    return Question("en", texts, f"Ones: {ones}. Tens: {tens}.", f"{a} plus {b} is {{}}.", *_sum_answers(a, b))


def _sum_zh(a: int, b: int) -> Question:
    ones, tens = _columns(a, b)
    texts = (f"{a} 加 {b} 等于多少？", f"请算一下 {a} + {b}。")
    thought = f"先算个位：{ones}。再算十位：{tens}。"
    return Question("zh", texts, thought, f"{a} 加 {b} 等于 {{}}。", *_sum_answers(a, b))


def _sum_answers(a: int, b: int) -> tuple[str, str]:
    return str(a + b), str(a + b + (10 if (a + b) % 2 else -1))


def _comparison_en(a: int, b: int) -> Question:
    thought = f"Tens: {a // 10} and {b // 10}. Ones: {a % 10} and {b % 10}."
    answers = str(max(a, b)), str(min(a, b))
    return Question("en", (f"Which is larger, {a} or {b}?",), thought, "The larger one is {}.", *answers)


def _comparison_zh(a: int, b: int) -> Question:
    thought = f"先看十位：{a // 10} 和 {b // 10}。再看个位：{a % 10} 和 {b % 10}。"
    answers = str(max(a, b)), str(min(a, b))
    return Question("zh", (f"{a} 和 {b} 哪个大？",), thought, "较大的数是 {}。", *answers)


def _opposite(language: str, word: str, other: str, words: list[str]) -> Question:
    wrong = words[(words.index(other) + 5) % len(words)]
    if language == "en":
        return Question(
            "en",
            (f"What is the opposite of {word}?", f"Tell me the opposite of {word}."),
            f"A word and its opposite: {word}.",
            f"The opposite of {word} is {{}}.",
            other,
            wrong,
        )
    texts = (f"“{word}”的反义词是什么？", f"请说出“{word}”的反义词。")
    thought = f"这道题要找一个词的反义词，这个词是“{word}”。"
    return Question("zh", texts, thought, f"“{word}”的反义词是“{{}}”。", other, wrong)


def _next_day(language: str, index: int) -> Question:
    days = DAYS[language]
    day, right, wrong = days[index], days[(index + 1) % 7], days[(index + 3) % 7]
    if language == "en":
        texts = (f"Which day comes after {day}?",)
        return Question("en", texts, f"The days of the week, from {day} on.", f"After {day} comes {{}}.", right, wrong)
    thought = f"这道题问一周里的日子，从{day}往后数一天。"
    return Question("zh", (f"{day}的后一天是星期几？",), thought, f"{day}的后一天是{{}}。", right, wrong)


def right_answer(completions: list, answer: list[str], **columns) -> list[float]:
    """A reward function: 1 if the answer part ends its first sentence with the answer, else 0."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(_given_answer(text) == expected) for text, expected in zip(texts, answer, strict=True)]


def _given_answer(text: str) -> str:
    """The last number or word of the first sentence after the thought."""
    first = re.split(r"[。.！!]", text.split("</think>")[-1].strip())[0]
    numbers = re.findall(r"\d+", first)
    if numbers:
        return numbers[-1]
    quoted = re.findall(r"“([^”]+)”", first)
    if quoted:
        return quoted[-1]
    return re.split(r"\s|的后一天是", first)[-1]


def split(world: list[Question], seed: int, share: float = 0.12) -> tuple[list[Question], list[Question]]:
    """Returns the questions to learn from and the held-out ones.

    Only questions about numbers are held out: words have to be learned. All questions about the same two numbers stay
    together, in both languages and in either order.
    """
    numbers = sorted({_numbers(item) for item in world if _numbers(item)})
    chosen = set(random.Random(seed).sample(numbers, round(share * len(numbers))))
    held_out = [item for item in world if _numbers(item) in chosen]
    return [item for item in world if _numbers(item) not in chosen], held_out


def _numbers(item: Question) -> tuple[str, ...]:
    return tuple(sorted(re.findall(r"\d+", item.texts[0])))


def _user(item: Question, rng: random.Random) -> dict[str, str]:
    return {"role": "user", "content": rng.choice(item.texts)}


def texts(items: Iterable[Question], rng: random.Random) -> Iterable[dict]:
    for item in items:
        yield {"text": f"{rng.choice(item.texts)} {item.sentence.format(item.answer)}"}


def conversations(items: Iterable[Question], rng: random.Random) -> Iterable[dict]:
    for item in items:
        answer = {"role": "assistant", "content": item.courteous() if rng.random() < 0.5 else item.answer}
        if rng.random() < 0.75:
            answer["reasoning_content"] = item.thought
        yield {"conversations": [_user(item, rng), answer]}


def tool_conversations() -> Iterable[dict]:
    """The model calls a tool and passes its answer on."""
    asked = {"en": "How is the weather in {}?", "zh": "{}的天气怎么样？"}
    told = {"en": "It is {} in {}.", "zh": "{1}现在是{0}天。"}
    for language, (cities, weathers) in WEATHER.items():
        for city in cities:
            for weather in weathers:
                call = {"name": "get_weather", "arguments": {"city": city}}
                yield {
                    "conversations": [
                        {"role": "system", "content": "", "tools": json.dumps(TOOLS)},
                        {"role": "user", "content": asked[language].format(city)},
                        {"role": "assistant", "content": "", "tool_calls": json.dumps([call], ensure_ascii=False)},
                        {"role": "tool", "content": json.dumps({"weather": weather}, ensure_ascii=False)},
                        {"role": "assistant", "content": told[language].format(weather, city)},
                    ]
                }


def preferences(items: Iterable[Question], rng: random.Random) -> Iterable[dict]:
    foreign = {"en": "zh", "zh": "en"}
    for item in items:
        bare_sentence = item.sentence.format(item.answer)
        other = bare_sentence + COURTESY[foreign[item.language]]
        rejected = rng.choice(
            [item.answer, item.answer, bare_sentence, item.courteous(right=False), other, item.wrong]
        )
        user = _user(item, rng)
        answers = {"chosen": item.courteous(), "rejected": rejected}
        yield {name: [user, {"role": "assistant", "content": text}] for name, text in answers.items()}


def prompts(items: Iterable[Question], rng: random.Random) -> Iterable[dict]:
    for item in items:
        yield {"conversations": [_user(item, rng), {"role": "assistant", "content": ""}], "answer": item.answer}


def write(folder: Path, seed: int = 0) -> dict[str, int]:
    """Writes all files.

    Args:
        folder (`Path`): Created if it does not exist.
        seed (`int`): Seed of the split and of all random choices.

    Returns:
        `dict[str, int]`: Number of rows in each file.
    """
    train, held_out = split(questions(), seed)
    words = [item for item in train if not item.answer.isdigit()] * 8  # few questions, each of which must be learned
    files: dict[str, tuple[Callable, list]] = {
        "pretrain": (texts, train + words),
        "sft": (conversations, train + words),
        "preferences": (preferences, train + words),
        "preferences_held_out": (preferences, held_out),
        "prompts": (prompts, train + words),
        "held_out": (prompts, held_out),
    }
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for number, (name, (make, items)) in enumerate(files.items()):
        rng = random.Random(f"{seed}/{number}")
        rows = list(make(items, rng))
        if name == "sft":
            rows += tool_conversations()
        rng.shuffle(rows)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        counts[name] = len(rows)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the data of the small world.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(write(options.folder, options.seed)))


if __name__ == "__main__":
    main()

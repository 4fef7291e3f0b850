"""What an answer is worth, by the value of `task.reward`:

    chrf, bleu              how similar it is to the reference, from 0 to 1: for pairs
    a model's folder        what a reward model says, or how probable a classifier finds `task.label`
    file.py:function        a Python function, in a folder that the command line names: --parts FOLDER

A function gets lists of prompts and answers, and of references if rows are pairs; it returns a number for each answer.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import yaml

from heedful import parts
from heedful.bounded import read_yaml
from heedful.checkpoint import read_config
from heedful.config import did_you_mean, parse
from heedful.data.padding import Row
from heedful.evaluation.metrics import METRICS, sentence_scores
from heedful.files import write_text
from heedful.tasks import TaskConfig
from heedful.tasks.classification import HEAD, Classifier
from heedful.tasks.reward import Judge
from heedful.text.tokenizer import Tokenizer


class Reward(Protocol):
    def __call__(
        self, prompts: Sequence[Row], answers: Sequence[Row], ended: Sequence[bool], references: Sequence[str]
    ) -> list[float]:
        """A number for each answer. `ended`: whether it ends by itself; `references`: none if rows are prompts."""
        ...


def folder_of(reward: str) -> str:
    """The folder of the model that gives the reward, if one does."""
    return "" if reward in METRICS or ".py:" in reward else reward


def forget_function(folder: Path) -> None:
    """A finished folder needs no code of a reward: its config names only the folders of parts with components."""
    data = read_yaml(folder / "config.yaml")
    kept = [name for name in parts.listed(data.get("parts")) if name not in parts.used() or parts.has_components(name)]
    write_text(folder / "config.yaml", yaml.safe_dump({**data, "parts": kept}, sort_keys=False))


def open_reward(reward: str, label: str, tokenizers: Sequence[Tokenizer], *, joined: bool) -> Reward:
    """`joined`: prompt and answer are one text."""
    first, last = tokenizers[0], tokenizers[-1]
    if label and not folder_of(reward):
        raise ValueError(f"task.label is for the reward of a classifier, not for {reward}; leave it out")
    if reward in METRICS:
        return lambda prompts, answers, ended, references: [
            one / 100 for one in sentence_scores(reward, last.decode(answers), references)
        ]
    if ".py:" in reward:
        return _by_function(reward, first, last)
    task = parse(TaskConfig, read_config(Path(reward)).get("task") or "translation")
    use: Any = task.open(Path(reward))
    if isinstance(use, Judge):
        if label:
            raise ValueError(f"task.label is for classifiers, and {reward} is a reward model; leave it out")
        return _by_judge(use, first, last)
    if not isinstance(use, Classifier):
        raise ValueError(f"task.reward: {reward} was trained for {task.kind}; give a reward model or a classifier")
    if label not in use.labels:
        raise ValueError(
            f"task.label must name a label of {reward}, whose probability is the reward, not {label!r}"
            f"{did_you_mean(label, use.labels)}"
        )
    return _by_classifier(use, label, first, last, joined=joined)


def _by_judge(judge: Judge, first: Tokenizer, last: Tokenizer) -> Reward:
    """If the tokenizers are the same, the judge reads the very tokens."""
    theirs = judge.tokenizers
    same = [first.digest(), last.digest()] == [theirs[0].digest(), theirs[-1].digest()]

    def rate(
        prompts: Sequence[Row], answers: Sequence[Row], ended: Sequence[bool], references: Sequence[str]
    ) -> list[float]:
        if same:
            return judge.score_tokens(prompts, answers, ended)
        return judge.score(first.decode(prompts), last.decode(answers))

    return rate


def _by_classifier(use: Classifier, label: str, first: Tokenizer, last: Tokenizer, *, joined: bool) -> Reward:
    """Of prompt and answer as one text, or as a pair if the classifier reads pairs; of an encoder-decoder's answer
    alone."""
    place, pair = use.labels.index(label), sum(column.is_text for column in use.opened.columns) == 2

    def rate(
        prompts: Sequence[Row], answers: Sequence[Row], ended: Sequence[bool], references: Sequence[str]
    ) -> list[float]:
        texts: list[tuple[str, ...]]
        if pair:
            texts = list(zip(first.decode(prompts), last.decode(answers), strict=True))
        else:
            rows = [[*one, *two] for one, two in zip(prompts, answers, strict=True)] if joined else answers
            texts = [(text,) for text in last.decode(rows)]
        logits = use.opened.logits(texts, HEAD)
        found = logits.sigmoid() if use.several else logits.softmax(-1)
        numbers: list[float] = found[:, place].tolist()
        return numbers

    return rate


def _by_function(reward: str, first: Tokenizer, last: Tokenizer) -> Reward:
    function: Callable[..., Any] = parts.function(reward)

    def rate(
        prompts: Sequence[Row], answers: Sequence[Row], ended: Sequence[bool], references: Sequence[str]
    ) -> list[float]:
        given = [first.decode(prompts), last.decode(answers), *([list(references)] if references else [])]
        try:
            found = [float(one) for one in function(*given)]
        except Exception as error:
            raise ValueError(f"task.reward: {reward} has failed: {type(error).__name__}: {error}") from error
        if len(found) != len(answers) or not all(map(isfinite, found)):
            raise ValueError(
                f"task.reward: {reward} must return a finite number for each of {len(answers)} answers, but returned "
                f"{found[:5]}"
            )
        return found

    return rate

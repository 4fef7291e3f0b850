"""How decoding starts for language models: with prompts, padded on the left."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from heedful.bank import ChosenStepper, numbers
from heedful.decoding.generation import PARALLEL, GenerationConfig
from heedful.decoding.rules import Rules, banned_forms
from heedful.decoding.runner import Job, Start
from heedful.decoding.stepper import KernelPromptStepper, PromptStepper, Recurrence, Stepper
from heedful.decoding.stops import Stops
from heedful.model.architecture import LanguageModel
from heedful.model.cpu.decoding import lower
from heedful.text.tokenizer import Tokenizer

NEW_TOKENS = 200  # if max_new_tokens is 0


class FromPrompt:
    """`adapters`: the names of those that prompts may choose (see `bank.py`)."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        recurrence: Recurrence | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        self.models, self.model, self.tokenizer, self.recurrence = [model], model, tokenizer, recurrence
        self.adapters = tuple(adapters)
        self.quick = None if recurrence is not None else lower(model) or None

    def size(self, tokens: Sequence[int], config: GenerationConfig) -> int:
        """New tokens count too: they are cached like the prompt."""
        return len(tokens) + (config.max_new_tokens or NEW_TOKENS)

    @property
    def key(self) -> object:
        return None

    def refresh(self) -> None:
        if self.quick is not None:
            self.quick.refresh()

    def start(self, jobs: Sequence[Job], config: GenerationConfig) -> Start:
        config.refuse(PARALLEL, "is for models that write all words at once, and this one writes word by word")
        tokenizer, limit = self.tokenizer, self.model.limit
        new = config.max_new_tokens or NEW_TOKENS
        limits = [new if limit is None else min(new, limit - len(job.tokens)) for job in jobs]
        prompt, valid = (tensor.to(self.model.device) for tensor in _padded_left([job.tokens for job in jobs]))
        rules = Rules(
            config=config,
            eos=tokenizer.eos,
            never=tokenizer.never,
            banned=banned_forms(tokenizer, [job.request.banned for job in jobs]),
            stops=Stops(tokenizer, config.stop_strings) if config.stop_strings else None,
        )
        real = None if bool(valid.all()) else valid
        adapters = numbers([job.request.adapter for job in jobs], self.adapters)
        stepper: Stepper
        if self.quick is not None:
            stepper = KernelPromptStepper(self.quick, prompt, length=max(limits), valid=real)
        else:
            length, recurrence = max(limits), self.recurrence
            begun = partial(PromptStepper, self.model, prompt, length=length, valid=real, recurrence=recurrence)
            stepper = begun() if adapters is None else ChosenStepper(begun, adapters)
        return Start(stepper, prompt[:, -1], limits, rules)


def _padded_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(tokens, valid), with all last tokens in the last column."""
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    valid = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return tokens, valid

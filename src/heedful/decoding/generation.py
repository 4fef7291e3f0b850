"""How to decode: the settings of a search, under Hugging Face's names."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, model_validator

from heedful.config import Config, Size, parse


class GenerationConfig(Config):
    """Beam search unless `num_beams` is 1 (greedy) or `do_sample` is set. The descriptions are the help texts of the
    command line, too."""

    num_beams: Size = Field(4, description="Beam size; 1 = greedy.")
    num_return_sequences: Size = Field(1, description="How many texts to return, the best first.")
    length_penalty: float = Field(1.0, description="Score = sum / length^this. 1 = average, 0 = sum.")
    alpha: float = Field(0.0, description="Score = sum / ((5 + length) / 6)^this (Wu et al. 2016, equation 14).")
    max_new_tokens: int = Field(0, ge=0, description="Maximum number of new tokens; 0 = by source length, or 200.")
    min_new_tokens: int = Field(0, ge=0, description="Minimum number of new tokens.")
    early_stopping: Literal["never", True] = Field(
        "never", description="Stop at num_beams finished texts. Default: when no other can win, which is exact."
    )
    no_repeat_ngram_size: int = Field(0, ge=0, description="No n-gram of this size twice; 0 = off.")
    repetition_penalty: float = Field(
        1.0, ge=0.01, le=100, description="Above 1: less repetition (Keskar et al. 2019)."
    )
    num_beam_groups: Size = Field(
        1, description="Diverse beam search: groups of beams that avoid each other's tokens (Vijayakumar et al. 2018)."
    )
    diversity_penalty: float = Field(0.0, ge=0, description="Strength of the diversity; about 0.5.")
    stop_strings: tuple[str, ...] = Field((), description="Stop before this string; may be given several times.")
    renormalize_logits: bool = Field(
        False, description="Renormalise probabilities after banning tokens, as CTranslate2 does."
    )
    do_sample: bool = Field(False, description="Sample instead of beam search.")
    temperature: float = Field(1.0, ge=0.001, description="Sampling temperature; higher = more random.")
    top_k: int = Field(0, ge=0, description="Sample from the k most likely tokens; 0 = all.")
    top_p: float = Field(1.0, ge=1e-6, le=1, description="Sample from the top tokens with total probability p.")
    min_p: float = Field(0.0, ge=0, lt=1, description="Drop tokens less likely than p times the best one.")
    seed: int | None = Field(None, description="Random seed of the samples.")
    fertilities: Literal["argmax", "average"] = Field(
        "argmax", description="Non-autoregressive models: the most likely fertility, or its rounded average."
    )
    noisy: int = Field(
        0, ge=0, description="Non-autoregressive models: also try so many sampled fertilities; the teacher chooses."
    )
    iterations: Size = Field(10, description="Mask-predict: how often the least certain words are written again.")
    length_beam: Size = Field(5, description="Mask-predict: how many lengths to try.")

    @model_validator(mode="after")
    def _fits_together(self) -> "GenerationConfig":
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences {self.num_return_sequences} is more than num_beams {self.num_beams}; "
                "raise num_beams or set do_sample"
            )
        if self.num_beams % self.num_beam_groups:
            raise ValueError(f"num_beams {self.num_beams} must be a multiple of num_beam_groups {self.num_beam_groups}")
        if (self.num_beam_groups > 1) != (self.diversity_penalty > 0):
            raise ValueError("num_beam_groups and diversity_penalty go together: set both or neither")
        if self.num_beam_groups > 1 and self.do_sample:
            raise ValueError("num_beam_groups is for beam search; leave out do_sample")
        if "" in self.stop_strings:
            raise ValueError("a stop string is empty")
        if self.max_new_tokens and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}")
        return self

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise ValueError if one of these settings differs from its default."""
        for name in names:
            if getattr(self, name) != GenerationConfig.model_fields[name].default:
                raise ValueError(f"{name} {why}; leave it out")

    def rank(self, log_prob: float, length: int) -> float:
        """The score that hypotheses are compared by; `length` counts every new token, </s> included."""
        return log_prob / (length**self.length_penalty * ((5 + length) / 6) ** self.alpha)

    def best_rank(self, log_prob: float, length: int, limit: int) -> float:
        """The highest rank that a live hypothesis of this length can still reach by ending within the limit.

        Its log-probability can only fall, and the divisor is monotonic in the length, so the maximum is at one end of
        the range: ending now, or at the limit.
        """
        return max(self.rank(log_prob, length + 1), self.rank(log_prob, max(limit, length + 1)))


# What only non-autoregressive models know.
PARALLEL = ("fertilities", "noisy", "iterations", "length_beam")

# Names used by other tools.
ALIASES = {
    "beam_size": "num_beams",
    "n_best": "num_return_sequences",
    "max_length": "max_new_tokens",
    "min_length": "min_new_tokens",
}


def with_options(config: GenerationConfig, options: dict[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
    """The config, updated by the options that are its keys under either spelling; and the remaining options."""
    named = {ALIASES.get(name, name): value for name, value in options.items()}
    changed = {name: value for name, value in named.items() if name in GenerationConfig.model_fields}
    others = {name: value for name, value in named.items() if name not in GenerationConfig.model_fields}
    if not changed:
        return config, others
    if changed.get("num_return_sequences", 1) > 1 and "num_beams" not in changed and not changed.get("do_sample"):
        changed["num_beams"] = max(config.num_beams, changed["num_return_sequences"])
    return parse(GenerationConfig, {**config.model_dump(), **changed}), others

"""How to write: the settings of a search, by Hugging Face's names."""

from typing import Any, Literal

from pydantic import Field, model_validator

from heedful.config import Config, Size, parse


class GenerationConfig(Config):
    """Beam search unless `num_beams` is 1 (greedy) or `do_sample` is set.

    num_return_sequences    how many hypotheses of each sentence to give back, the best first
    length_penalty          ranked by log-probability / length^length_penalty; 1 = the average, 0 = the sum
    alpha                   the same by ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14)
    max_new_tokens          0 = from the length of the source
    early_stopping          never = go on until no live hypothesis can beat the worst kept one, which is exact;
                            true = stop at `num_beams` finished ones
    no_repeat_ngram_size    no run of so many tokens twice; 0 = off
    repetition_penalty      above 1: tokens already written are less likely (Keskar et al. 2019)
    num_beam_groups         so many groups of beams, each of which shuns what those before it say at the same place
    diversity_penalty       how much: log-probability lost for each beam that has just written the token
                            (Vijayakumar et al. 2018)
    stop_strings            the text ends where one of these begins
    renormalize_logits      share out among the others what the rules took from some (as CTranslate2 does)
    """

    num_beams: Size = 4
    num_return_sequences: Size = 1
    length_penalty: float = 1.0
    alpha: float = 0.0
    max_new_tokens: int = Field(0, ge=0)
    min_new_tokens: int = Field(0, ge=0)
    early_stopping: Literal["never", True] = "never"
    no_repeat_ngram_size: int = Field(0, ge=0)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    num_beam_groups: Size = 1
    diversity_penalty: float = Field(0.0, ge=0)
    stop_strings: tuple[str, ...] = ()
    renormalize_logits: bool = False
    do_sample: bool = False
    temperature: float = Field(1.0, ge=0.001)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, ge=1e-6, le=1)
    min_p: float = Field(0.0, ge=0, lt=1)
    seed: int | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "GenerationConfig":
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences {self.num_return_sequences} is more than num_beams {self.num_beams}; "
                "raise num_beams or set do_sample"
            )
        if self.num_beams % self.num_beam_groups:
            raise ValueError(f"num_beams {self.num_beams} cannot be dealt out to {self.num_beam_groups} groups equally")
        if (self.num_beam_groups > 1) != (self.diversity_penalty > 0):
            raise ValueError("num_beam_groups and diversity_penalty go together: set both or neither")
        if self.num_beam_groups > 1 and self.do_sample:
            raise ValueError("num_beam_groups is for beam search; leave out do_sample")
        if "" in self.stop_strings:
            raise ValueError("a stop string is empty")
        if self.max_new_tokens and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}")
        return self

    def rank(self, log_prob: float, length: int) -> float:
        """What hypotheses are compared by; `length` counts every token written, the end included."""
        return log_prob / (length**self.length_penalty * ((5 + length) / 6) ** self.alpha)

    def best_rank(self, log_prob: float, length: int, limit: int) -> float:
        """The highest rank that a live hypothesis of this length can still reach by ending within the limit.

        Its log-probability only falls. Where length divides, the longest ending is the kindest; the kindest of all is
        at one end of the range, because the divisor rises or falls throughout.
        """
        return max(self.rank(log_prob, length + 1), self.rank(log_prob, max(limit, length + 1)))


# The other spellings people use.
ALIASES = {
    "beam_size": "num_beams",
    "n_best": "num_return_sequences",
    "max_length": "max_new_tokens",
    "min_length": "min_new_tokens",
}


def with_options(config: GenerationConfig, options: dict[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
    """The config with those of the options that are its keys, under either spelling; and the other options."""
    named = {ALIASES.get(name, name): value for name, value in options.items()}
    changed = {name: value for name, value in named.items() if name in GenerationConfig.model_fields}
    others = {name: value for name, value in named.items() if name not in GenerationConfig.model_fields}
    if not changed:
        return config, others
    if changed.get("num_return_sequences", 1) > 1 and "num_beams" not in changed and not changed.get("do_sample"):
        changed["num_beams"] = max(config.num_beams, changed["num_return_sequences"])
    return parse(GenerationConfig, {**config.model_dump(), **changed}), others

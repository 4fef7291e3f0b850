"""Models trained by denoising, ready to use: a translator of incomplete texts into complete ones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heedful.checkpoint import load_model, open_tokenizers, read_config
from heedful.data.corpus import Line, read_texts
from heedful.data.noise import restored
from heedful.data.pieces import Texts
from heedful.decoding.streams import cores
from heedful.model.architecture import SequenceToSequence
from heedful.model.int8 import quantize_as
from heedful.text.marks import Marked
from heedful.text.tokenizer import Tokenizer
from heedful.translator import Translator

Measure = Callable[[SequenceToSequence, Texts], dict[str, float]]


class Denoiser(Translator):
    """`translate` gives what the decoder writes: the whole text, or, if the noise is spans, `<extra_id_0> cat
    <extra_id_1> on`, what belongs in each mark. `predict` fills that in."""

    def __init__(
        self, model: SequenceToSequence, tokenizer: Tokenizer, *, limit: int, measure: Measure, streams: int = 1
    ) -> None:
        super().__init__([model], [tokenizer, tokenizer], limit=limit, streams=streams)
        self.model, self._measure = model, measure
        self.spans = isinstance(tokenizer, Marked) and tokenizer.marks == tokenizer.sentinels

    def predict(
        self, texts: Sequence[str], *, source: str = "", target: str = "", length: str = ""
    ) -> list[dict[str, Any]]:
        """`text`: the completed text; `written`: what the decoder wrote; `score`: its rank among others."""
        rows = self.source.encode([text.strip() for text in texts])
        for number, row in enumerate(rows, start=1):
            self._check(number, texts[number - 1], row)
        found = self.translate(list(texts), source=source, target=target, length=length)
        written = [one.text for one in found]
        filled = written
        if self.spans:
            both = zip(rows, found, strict=True)
            filled = self.target.decode([restored(row, one.tokens, self.source.sentinels) for row, one in both])
        return [
            {"text": text.strip(), "written": one.text, "score": one.score}
            for text, one in zip(filled, found, strict=True)
        ]

    def evaluate(self, test: Path) -> dict[str, Any]:
        """Loss and accuracy per token of a text file, with the noise of validation."""
        lines = [line.texts[0] for line in read_texts([test]) if isinstance(line, Line)]
        rows = self.source.encode(lines)
        if not any(rows):
            raise ValueError(f"{test} has no text to score")
        return {
            "documents": len(rows),
            "tokens": sum(map(len, rows)),
            **self._measure(self.model, Texts.from_rows(rows)),
        }

    def _check(self, number: int, text: str, row: Sequence[int]) -> None:
        if len(row) >= self.limit:
            raise ValueError(f"line {number} has {len(row)} tokens, but the model reads {self.limit - 1}; shorten it")
        if self.spans and text.strip() and not set(row) & set(self.source.sentinels):
            raise ValueError(
                f"line {number} has nothing to fill in: {text.strip()[:40]!r}; write <extra_id_0> where words are to "
                "be found, <extra_id_1> in the next place"
            )


def open_denoiser(
    folder: Path, measure: Callable[[Tokenizer, int], Measure], marked: Callable[[Tokenizer], Tokenizer], **options: Any
) -> Denoiser:
    """The denoiser of a finished folder. `quantize` int8 and `streams` are the options."""
    quantize, streams = options.pop("quantize", ""), options.pop("streams", None)
    if options:
        raise ValueError(f"{', '.join(options)} is for translators; leave it out")
    model = load_model(folder)
    if not isinstance(model, SequenceToSequence):
        raise ValueError(f"{folder}: a model of kind {model.config.kind} does not write from a source")
    quantize_as(model, quantize)
    (tokenizer,) = open_tokenizers(folder, model, columns=1)
    limit = int(read_config(folder).get("data", {}).get("max_length", 256))
    return Denoiser(
        model,
        marked(tokenizer),
        limit=limit,
        measure=measure(tokenizer, limit),
        streams=cores() if streams is None else streams,
    )

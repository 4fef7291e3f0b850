"""Vectors for texts: texts that belong together get similar ones.      Reimers and Gurevych 2019 (Sentence-BERT)"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heedful.checkpoint import load_model, open_tokenizers, read_config
from heedful.data.columns import Column, Columns
from heedful.data.layout import is_number
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.evaluation.classes import pearson, spearman
from heedful.evaluation.retrieval import ranks_of
from heedful.exchange.sentence_transformers import Kind, Pooling
from heedful.model.architecture import Model, Reader
from heedful.objectives import Loss, Term
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._labelled import Rows
from heedful.tasks._reading import SPECIALS, Windows, read, shares
from heedful.tasks._vectors import POSITIVE, QUERY, SCORE, SCORED, Embedder, pooled, truncated

NEGATIVE = ("neg", "hard_negative", "negative_1", "negative1", "contradiction")
CHUNK = 1024  # queries compared with all candidates of a validation set at once


class EmbeddingConfig(TaskConfig):
    """`loss`: `pairs` for rows of two texts that belong together, of which the other rows' texts are the negatives, and
    perhaps a third text that does not belong to the first; `cosine` for two texts and the score of their similarity,
    whose `highest` value means cosine 1. `pooling`: how the states of a text become one vector; `normalise`: to length
    1. `temperature`: of the softmax over candidates (pairs); `symmetric`: texts must find their queries too.
    `negative`: whether rows have a third text; None = as the files have. Texts are read up to data.max_length tokens.
    """

    trains: ClassVar[type[Model]] = Reader
    specials: ClassVar[tuple[str, ...]] = SPECIALS
    labelled: ClassVar[bool] = True
    gathers: ClassVar[bool] = True
    note: ClassVar[str] = "Accuracy and MRR: each query against all texts of the validation set."
    loss: Literal["pairs", "cosine"] = "pairs"
    pooling: Kind = "mean"
    normalise: bool = True
    temperature: float = Field(0.05, gt=0)
    symmetric: bool = False
    highest: float = Field(5.0, gt=0)
    negative: bool | None = None

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self.loss == "cosine"

    @property
    def metrics(self) -> Mapping[str, Direction]:  # type: ignore[override]
        if self.loss == "cosine":
            return {"loss": "lower", "pearson": "higher", "spearman": "higher"}
        return {"loss": "lower", "accuracy": "higher", "mrr": "higher"}

    @property
    def columns(self) -> Columns:
        if self.loss == "cosine":
            return SCORED
        pair = (Column("query", also=QUERY), Column("positive", also=POSITIVE))
        return (*pair, Column("negative", also=NEGATIVE)) if self.negative else pair

    def for_columns(self, width: int, names: Collection[str]) -> "EmbeddingConfig":
        if self.loss == "cosine" or self.negative is not None:
            return self
        named = bool({"negative", *NEGATIVE} & set(names))
        scored = sorted({"score", *SCORE} & set(names))
        if scored and not named:
            raise ValueError(
                f"the column {scored[0]} holds scores, but task.loss=pairs reads texts that belong together; set "
                "task.loss=cosine, or name the columns of texts with --fields"
            )
        return self.model_copy(update={"negative": named or width == 3})

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return {**model, "vocab": prepared.tokenizers[0].vocab, "heads": []}

    def build(self, prepared: Prepared, settings: Settings) -> "Embedding":
        return Embedding(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Embedder:
        """`quantize` int8 is the one option."""
        if others:
            raise ValueError("only translators form an ensemble; give one folder")
        quantize = options.pop("quantize", "")
        options.pop("streams", None)
        if options:
            raise ValueError(f"{', '.join(options)} is for translators; leave it out")
        model, data = load_model(folder), read_config(folder).get("data") or {}
        if not isinstance(model, Reader):
            raise ValueError(f"{folder}: a model of kind {model.config.kind} has no states of texts; train an "
                             "encoder_only")  # fmt: skip
        pooling = Pooling(self.pooling, self.normalise, int(data.get("max_length", 256)))
        (tokenizer,) = open_tokenizers(folder, model, columns=1)
        fields = tuple(data.get("fields") or ())
        return Embedder(model, tokenizer, pooling, columns=self.columns, fields=fields, quantize=quantize)


@dataclass(frozen=True)
class RowsOfTexts:
    """`texts`: those of the first column, then those of the second ...; `rows`: row numbers; `wanted`: cosines."""

    texts: Windows
    rows: Tensor
    wanted: Tensor

    @property
    def counts(self) -> dict[str, float]:
        return {"pairs": len(self.rows)}

    @property
    def tokens_read(self) -> int:
        return self.texts.tokens_read

    def to(self, device: torch.device) -> "RowsOfTexts":
        return RowsOfTexts(self.texts.to(device), self.rows.to(device), self.wanted.to(device))


class Embedding:
    """`world`: the processes that share a step, set by the trainer."""

    def __init__(self, config: EmbeddingConfig, prepared: Prepared, settings: Settings) -> None:
        self.config, self.rows = config, Rows(prepared, settings)
        self.place = len(prepared.columns) - 1
        self.texts = prepared.texts("valid") if prepared.has("valid") else []
        self.world: Processes | None = None
        self._refuse_numbers()
        self.notes = [*self._scores_read(), *self._long_ones()]

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.rows.epoch(number, budget=budget, seed=seed)

    def worst(self, budget: int) -> np.ndarray:
        return self.rows.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> RowsOfTexts:
        return self._batch(self.rows.train, rows)

    def loss(self, model: Reader, batch: RowsOfTexts, *, state: State) -> Loss:
        """pairs: - log exp(cos(q_i, p_i) / t) / sum over j of exp(cos(q_i, c_j) / t), c_j the positives and negatives
        of the whole step.      Henderson et al. 2017, section 4; MultipleNegativesRankingLoss of sentence-transformers

        cosine: (cos(u, v) - score)^2      Reimers and Gurevych 2019
        """
        vectors = F.normalize(self._vectors(model, batch).float(), dim=-1)  # rows columns width
        if self.config.loss == "cosine":
            total = F.mse_loss((vectors[:, 0] * vectors[:, 1]).sum(-1), batch.wanted, reduction="sum")
            return Loss({"pairs": Term(total, len(batch.rows))})
        everyone, numbers = vectors, batch.rows
        if self.world is not None and self.world.size > 1:
            everyone, numbers = self.world.gather_rows(vectors), self.world.gather_rows(batch.rows)
        # A process without rows of its own repeats one of another's, which must not be its rival.
        known, first = _first_of_each(numbers)
        own = torch.searchsorted(known, batch.rows)
        return Loss({"pairs": Term(self._contrast(vectors, everyone[first], own), len(batch.rows))})

    @torch.inference_mode()
    def evaluate(self, model: Reader, *, budget: int, samples: int, world: Processes) -> Scores:
        vectors = self._read_all(model, budget, world)
        first, second = vectors[:, 0], vectors[:, 1]
        if self.config.loss == "cosine":
            cosines = (first * second).sum(-1).double().numpy()
            wanted = self._numbers(self.rows.valid, np.arange(len(cosines)))
            numbers = {"loss": float(((cosines - wanted) ** 2).mean()), "pearson": pearson(cosines, wanted),
                       "spearman": spearman(cosines, wanted)}  # fmt: skip
            shown = [
                {"first": cells[0], "second": cells[1], "score": cells[2],
                 "predicted": f"{cosine * self.config.highest:.3f}"}
                for cells, cosine in zip(self.texts[:samples], cosines, strict=False)
            ]  # fmt: skip
            return Scores(numbers, shown)
        parts = torch.arange(len(vectors)).split(CHUNK)
        total = sum(float(self._contrast(vectors[part], vectors, part)) for part in parts)
        candidates = vectors[:, 1:].transpose(0, 1).flatten(0, 1)
        ranks = ranks_of(first.numpy(), candidates.numpy())
        numbers = {"loss": total / len(vectors), "accuracy": 100 * float((ranks == 1).mean()),
                   "mrr": float((1 / ranks).mean())}  # fmt: skip
        best = (first[:samples] @ candidates.T).argmax(1).tolist() if samples else []
        names = [row[place] for place in range(1, vectors.shape[1]) for row in self.texts]
        shown = [{"query": cells[0], "positive": cells[1], "nearest": names[place]}
                 for cells, place in zip(self.texts[:samples], best, strict=False)]  # fmt: skip
        return Scores(numbers, shown)

    def finish(self, model: Reader, folder: Path) -> None:
        """Nothing to add: the recipe says how vectors are pooled."""

    def _contrast(self, own: Tensor, everyone: Tensor, places: Tensor) -> Tensor:
        """The sum over own rows. own, everyone: rows columns width; `places`: of the own rows among everyone's."""
        candidates = everyone[:, 1:].transpose(0, 1).flatten(0, 1)
        total = F.cross_entropy(own[:, 0] @ candidates.T / self.config.temperature, places, reduction="sum")
        if not self.config.symmetric:
            return total
        back = own[:, 1] @ everyone[:, 0].T / self.config.temperature
        return (total + F.cross_entropy(back, places, reduction="sum")) / 2

    def _vectors(self, model: Reader, batch: RowsOfTexts) -> Tensor:
        found = pooled(read(model, batch.texts), batch.texts.valid, self.config.pooling)
        return found.unflatten(0, (-1, len(batch.rows))).transpose(0, 1)

    def _read_all(self, model: Reader, budget: int, world: Processes) -> Tensor:
        """The vectors of every validation row, of length 1, on every process: rows columns width."""
        store = self.rows.valid
        vectors = [torch.zeros(0, len(self.rows.places), model.config.width)]
        numbers = [torch.zeros(0, dtype=torch.long)]
        for rows in shares(store, budget=budget, world=world, cost=self.rows.cost):
            batch = self._batch(store, rows)
            vectors.append(F.normalize(self._vectors(model, batch.to(model.device)).float(), dim=-1).cpu())
            numbers.append(batch.rows)
        held, places = torch.cat(vectors).to(model.device), torch.cat(numbers).to(model.device)
        if world.size > 1:
            held, places = world.gather_rows(held), world.gather_rows(places)
        return held[places.argsort()].cpu()

    def _batch(self, store: Store, rows: np.ndarray) -> RowsOfTexts:
        texts = [text for place in self.rows.places for text in store.rows(place, rows)]
        read_texts = truncated(texts, self.rows.tokenizer, self.rows.length)
        wanted = self._numbers(store, rows) if self.config.loss == "cosine" else np.zeros(0)
        return RowsOfTexts(read_texts, torch.from_numpy(rows.astype(np.int64)), torch.from_numpy(wanted).float())

    def _numbers(self, store: Store, rows: np.ndarray) -> np.ndarray:
        """The cosine that each row wants."""
        found = np.array([float(bytes(row.astype(np.uint8))) for row in store.rows(self.place, rows)])
        return found / self.config.highest

    def _refuse_numbers(self) -> None:
        """Scores where cosines cannot reach, and scores where texts should be."""
        if self.config.loss == "cosine":
            for store in (self.rows.train, self.rows.valid):
                wanted = self._numbers(store, np.arange(len(store)))
                if len(wanted) and np.abs(wanted).max() > 1:
                    beyond = wanted[np.abs(wanted).argmax()] * self.config.highest
                    raise ValueError(f"a row has the score {beyond:g}, but a cosine of 1 stands for "
                                     f"{self.config.highest:g}; set task.highest to the highest score")  # fmt: skip
        elif self.config.negative and self.texts and all(is_number(row[-1]) for row in self.texts):
            raise ValueError("the third column holds numbers, where task.loss=pairs reads texts; set task.loss=cosine")

    def _scores_read(self) -> list[str]:
        if self.config.loss != "cosine":
            return []
        scores = self._numbers(self.rows.train, np.arange(len(self.rows.train))) * self.config.highest
        return [f"scores from {scores.min():g} to {scores.max():g}; a cosine of 1 stands for {self.config.highest:g} "
                "(task.highest)"]  # fmt: skip

    def _long_ones(self) -> list[str]:
        store, room = self.rows.train, self.rows.length - self.rows.tokenizer.frame.size(1)
        long = sum(int((store.lengths(place, 0, len(store)) > room).sum()) for place in self.rows.places)
        if not long:
            return []
        return [f"{long:,} texts are longer than data.max_length={self.rows.length} tokens: only their beginning is "
                "read"]  # fmt: skip


def _first_of_each(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct numbers in ascending order, and where each occurs first."""
    known, inverse = numbers.unique(return_inverse=True)
    places = torch.arange(len(numbers), device=numbers.device)
    first = torch.full_like(known, len(numbers)).scatter_reduce(0, inverse, places, "amin")
    return known, first

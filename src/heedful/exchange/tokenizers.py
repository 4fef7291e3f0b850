"""The tokenizer of a Hugging Face folder, whichever files hold it, with the ids that its model was trained with.

tokenizer.json                              as it is
source.spm, target.spm, vocab.json          Marian: a SentencePiece model per language, one vocabulary
*.model                                     SentencePiece: T5, ALBERT, XLNet, BigBird, LLaMA, XLM-RoBERTa, mBART
vocab.json, merges.txt                      byte-level BPE: GPT-2, RoBERTa, BART, Longformer, LED
vocab.txt                                   WordPiece: BERT
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from heedful.bounded import opening, read_object, read_text, whole_number
from heedful.exchange import sentencepiece
from heedful.exchange.sentencepiece import CONTROL, NORMAL, UNKNOWN, UNUSED, Piece, Pieces
from heedful.text.tokenizer import Tokenizer, chat_template, special_names

SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model", "sentencepiece.model")
MOST_EXTRA = 10_000  # of T5's <extra_id_0>, <extra_id_1>, ...
FILES = "tokenizer.json, vocab.txt, vocab.json with merges.txt, spiece.model, tokenizer.model, source.spm"
MBART = "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"  # noqa: E501


@dataclass(frozen=True)
class Habits:
    """What a family does beyond its vocabulary. `names`: its special tokens; `single`, `pair`: what it puts around one
    text and two, as templates of `tokenizers`, with a role in braces for each special token."""

    names: Mapping[str, str]
    single: str = "$A"
    pair: str = "$A $B:1"


BERT = Habits(
    {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    single="{cls} $A {sep}",
    pair="{cls} $A {sep} $B:1 {sep}:1",
)
ALBERT = replace(BERT, names={**BERT.names, "unk": "<unk>", "pad": "<pad>"})
ROBERTA = Habits(
    {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"},
    single="{bos} $A {eos}",
    pair="{bos} $A {eos} {eos} $B {eos}",
)
T5 = Habits({"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, single="$A {eos}", pair="$A {eos} $B {eos}")
XLNET = Habits(
    {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>"},
    single="$A {sep} {cls}:2",
    pair="$A {sep} $B:1 {sep}:1 {cls}:2",
)
LLAMA = Habits({"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, single="{bos} $A", pair="{bos} $A {bos}:1 $B:1")
GPT2 = Habits({"bos": "<|endoftext|>", "eos": "<|endoftext|>"})
FAMILIES = {
    "albert": ALBERT,
    "bart": ROBERTA,
    "bert": BERT,
    "big_bird": ALBERT,
    "gpt2": GPT2,
    "led": ROBERTA,
    "llama": LLAMA,
    "longformer": ROBERTA,
    "marian": T5,
    "mbart": replace(ROBERTA, single="$A {eos}", pair="$A $B {eos}"),
    "reformer": Habits({"eos": "</s>", "unk": "<unk>"}),
    "roberta": ROBERTA,
    "t5": T5,
    "xlm-roberta": ROBERTA,
    "xlnet": XLNET,
}


def load(folder: str | Path) -> Tokenizer:
    """The tokenizer of a folder; that of the target, if the source has one of its own."""
    return load_columns(folder, columns=1)[0]


def load_columns(folder: str | Path, *, columns: int) -> list[Tokenizer]:
    """One tokenizer per text column: the source's own, if there is one, for the first; the target's for the others."""
    folder = Path(folder)
    if not columns:
        return []
    with opening(folder):
        return _columns(folder, columns)


def _columns(folder: Path, columns: int) -> list[Tokenizer]:
    own = "source" if columns > 1 else "target"
    if (folder / "tokenizer.json").is_file():
        last = Tokenizer.load(folder / "tokenizer.json")
        first = folder / "source_tokenizer.json"
        return [Tokenizer.load(first) if first.is_file() and columns > 1 else last, *[last] * (columns - 1)]
    if (folder / f"{own}.spm").is_file():
        last = _Folder(folder, "marian").marian("target")
        return [_Folder(folder, "marian").marian("source") if own == "source" else last, *[last] * (columns - 1)]
    found = _Folder(folder, "").load()
    found.chat_template = chat_template(folder)
    return [found] * columns


class _Folder:
    """A folder without tokenizer.json."""

    def __init__(self, folder: Path, family: str) -> None:
        self.folder = folder
        self.settings = read_json(folder / "tokenizer_config.json") or {}
        self.family = family or (read_json(folder / "config.json") or {}).get("model_type") or self._class()

    def _class(self) -> str:
        """The family by the name of the tokenizer's class: LlamaTokenizerFast -> llama."""
        name = str(self.settings.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer").lower()
        return {kind.replace("-", "").replace("_", ""): kind for kind in FAMILIES}.get(name, "")

    def load(self) -> Tokenizer:
        model = next((self.folder / name for name in SENTENCEPIECE if (self.folder / name).is_file()), None)
        if model is not None:
            return self.sentencepiece(model)
        if (self.folder / "vocab.json").is_file() and (self.folder / "merges.txt").is_file():
            return self.byte_bpe()
        if (self.folder / "vocab.txt").is_file():
            return self.wordpiece()
        raise ValueError(f"{self.folder} has no tokenizer that can be read; looked for {FILES}")

    def wordpiece(self) -> Tokenizer:
        if not self.settings.get("do_basic_tokenize", True):
            raise ValueError(f"{self.folder}: WordPiece with do_basic_tokenize=false is not supported")
        habits = self._habits(BERT)
        lines = read_text(self.folder / "vocab.txt").split("\n")
        vocabulary = {token.rstrip("\r"): index for index, token in enumerate(lines[:-1] if not lines[-1] else lines)}
        if habits.names["unk"] not in vocabulary:
            raise ValueError(f"{self.folder / 'vocab.txt'} has no {habits.names['unk']}, which WordPiece needs")
        made = Backend(models.WordPiece(vocabulary, unk_token=habits.names["unk"], max_input_chars_per_word=100))
        made.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.settings.get("tokenize_chinese_chars", True),
            strip_accents=self.settings.get("strip_accents"),
            lowercase=self.settings.get("do_lower_case", True),
        )
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece(prefix="##")
        return self._finished(made, habits)

    def byte_bpe(self) -> Tokenizer:
        habits = self._habits(GPT2 if self.family in ("", "gpt2") else ROBERTA)
        vocabulary = read_json(self.folder / "vocab.json") or {}
        lines = read_text(self.folder / "merges.txt").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        return self._finished(byte_level(vocabulary, merges, prefix=self._prefix_space()), habits, trim=True)

    def _prefix_space(self) -> bool:
        return bool(self.settings.get("add_prefix_space", False))

    def sentencepiece(self, path: Path) -> Tokenizer:
        found = sentencepiece.read(path)
        if self.family in ("xlm-roberta", "mbart") or path.name == "sentencepiece.bpe.model":
            found = _fairseq(found, MBART.split() if self.family == "mbart" else ())
        habits = self._habits(LLAMA if path.name == "tokenizer.model" else T5)
        made = sentencepiece.backend(found, before=self._before())
        controls = [*found.with_kind(CONTROL), *found.with_kind(UNKNOWN)]
        sentinels: Sequence[str] = ()
        if self.family == "t5":
            given = {"extra_ids": 100, **self.settings}
            count = whole_number(given, "extra_ids", least=0, most=MOST_EXTRA, place=self.folder)
            sentinels = [f"<extra_id_{number}>" for number in reversed(range(count))]
        return self._finished(made, habits, more=[*controls, *sentinels])

    def _before(self) -> list[Any]:
        """ALBERT and XLNet change the text themselves before SentencePiece does."""
        if self.family not in ("albert", "xlnet"):
            return []
        steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        steps.append(normalizers.Replace(Regex(r"\A\s+|\s+\z"), ""))
        if not self.settings.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if self.settings.get("do_lower_case", self.family == "albert"):
            steps.append(normalizers.Lowercase())
        return steps

    def marian(self, side: str) -> Tokenizer:
        """Pieces by the side's SentencePiece model, ids by the common vocabulary."""
        own = self.folder / "target_vocab.json"
        path = own if side == "target" and own.is_file() else self.folder / "vocab.json"
        ids = read_json(path)
        if ids is None:
            raise ValueError(f"{self.folder} has {side}.spm, but no {path.name} with the ids of its pieces")
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(f"{path} does not number its {len(ids)} tokens from 0 to {len(ids) - 1}")
        found = sentencepiece.read(self.folder / f"{side}.spm")
        habits = self._habits(T5)
        known = {piece.text: piece for piece in found.pieces}
        control = {*habits.names.values(), *(text for text in ids if text.startswith(">>") and text.endswith("<<"))}
        pieces = []
        for text in sorted(ids, key=ids.__getitem__):
            kind = UNKNOWN if text == habits.names["unk"] else CONTROL if text in control else UNUSED
            pieces.append(Piece(text, 0.0, kind) if kind != UNUSED else known.get(text, Piece(text, 0.0, UNUSED)))
        lost = [text for text, piece in known.items() if text not in ids and piece.kind == NORMAL]
        if lost:
            said = f"{len(lost)} of {len(known)} pieces of {side}.spm are not in {path.name}"
            warnings.warn(f"{self.folder}: {said}; their texts are split further", stacklevel=5)
        made = sentencepiece.backend(replace(found, pieces=pieces))
        return self._finished(made, habits, more=[text for text in sorted(control) if text in ids])

    def _habits(self, usual: Habits) -> Habits:
        habits = FAMILIES.get(self.family, usual)
        names = {**habits.names, **special_names(self.folder / "tokenizer.json")}
        single, pair = habits.single, habits.pair
        if self.family in ("gpt2", "llama"):
            first = "{bos} " if self.settings.get("add_bos_token", self.family == "llama") else ""
            last = " {eos}" if self.settings.get("add_eos_token", False) else ""
            single = f"{first}$A{last}"
            second = f"{first}$B{last}".replace("} ", "}:1 ").replace(" {eos}", " {eos}:1").replace("$B", "$B:1")
            pair = f"{single} {second}"
        return Habits(names, single, pair)

    def _finished(self, made: Backend, habits: Habits, *, more: Sequence[str] = (), trim: bool = False) -> Tokenizer:
        made.add_special_tokens([token for token in more if token not in habits.names.values()])
        known = set(made.get_vocab())
        added = self._added()
        # Names that a model does not have (GPT-2's <|endoftext|> as the unknown token, ...) get no row.
        made.add_special_tokens([token for token in habits.names.values() if token in known])
        for index, token in sorted(added.items()):
            (made.add_special_tokens if token.special else made.add_tokens)([token])
            if made.token_to_id(token.content) != index:
                raise ValueError(
                    f"{self.folder}: the added token {token.content!r} should have the id {index}, "
                    f"but its vocabulary gives it {made.token_to_id(token.content)}"
                )
        made.post_processor = template(made, habits, trim=trim)
        names = {role: name for role, name in habits.names.items() if made.token_to_id(name) is not None}
        return Tokenizer(made, names)

    def _added(self) -> dict[int, AddedToken]:
        """Tokens added to the vocabulary later, by id."""
        names = set(special_names(self.folder / "tokenizer.json").values())
        older = read_json(self.folder / "added_tokens.json") or {}
        found = {index: AddedToken(text, special=text in names, normalized=False) for text, index in older.items()}
        for index, one in (self.settings.get("added_tokens_decoder") or {}).items():
            flags = {name: bool(one.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
            found[int(index)] = AddedToken(one["content"], special=bool(one.get("special", False)), **flags)
        return found


def byte_level(
    vocabulary: Mapping[str, int], merges: Sequence[Any], *, prefix: bool = False, whole: bool = False
) -> Backend:
    """Byte-level BPE (Radford et al. 2019). `whole`: a word in the vocabulary is one token, whatever merges lead to it
    (LLaMA 3)."""
    made = Backend(models.BPE(vocab=dict(vocabulary), merges=list(merges), ignore_merges=whole))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    return made


def template(made: Backend, habits: Habits, *, trim: bool = False) -> Any:
    """The post-processor that puts special tokens around texts. `trim`: without the space before a word in the span of
    its token, for byte-level BPE."""
    ids = {name: made.token_to_id(name) for name in habits.names.values()}
    framed = processors.TemplateProcessing(
        single=habits.single.format(**habits.names),
        pair=habits.pair.format(**habits.names),
        special_tokens=[(name, index) for name, index in ids.items() if index is not None],
    )
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), framed]) if trim else framed


def _fairseq(found: Pieces, languages: Sequence[str]) -> Pieces:
    """fairseq's ids: four special tokens, the model's pieces without its own three, then languages and the mask."""
    first = [Piece("<s>", 0.0, CONTROL), Piece("<pad>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]
    last = [Piece(name, 0.0, CONTROL) for name in (*languages, "<mask>")]
    return replace(found, pieces=[*first, Piece("<unk>", 0.0, UNKNOWN), *found.pieces[3:], *last])


def read_json(path: Path) -> dict[str, Any] | None:
    """None if there is no such file."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return None

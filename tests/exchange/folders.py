"""Small folders as other people publish them, with random weights and tokenizers trained on a few lines."""

import io
import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "der schnelle braune Fuchs springt über den faulen Hund",
    "I'm 19; you're 1,234.50!",
    "naïve café (twice) - résumé",
    "one two three four five six seven",
    "¿Qué? ¡Sí!",
]


def write(folder, *, config=None, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {"config": config, **files}.items():
        if data is not None:
            (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")


def wordpiece_folder(folder, **settings):
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=211, special_tokens=special, show_progress=False)
    backend.train_from_iterator([*TEXT, *(text.lower() for text in TEXT), "naive cafe resume 漢 字"] * 7, trainer)
    words = sorted(backend.get_vocab(), key=backend.get_vocab().get)
    write(folder, config={"model_type": "bert"}, tokenizer_config={"tokenizer_class": "BertTokenizer", **settings})
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return len(words)


def bpe_folder(folder, model_type, special, **settings):
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=347, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXT * 7, trainer)
    write(folder, config={"model_type": model_type}, tokenizer_config=settings)
    backend.model.save(str(folder))
    return backend


def trained(path, **options):
    spm = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    settings = {"vocab_size": 151, "hard_vocab_limit": False, "minloglevel": 3, **options}
    spm.SentencePieceTrainer.train(sentence_iterator=iter(TEXT * 7), model_writer=out, **settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out.getvalue())
    return spm.SentencePieceProcessor(model_proto=out.getvalue())


def marian(folder):
    source, target = (trained(folder / f"{side}.spm", vocab_size=size) for side, size in
                      (("source", 101), ("target", 127)))  # fmt: skip
    pieces = [processor.id_to_piece(index) for processor in (target, source) for index in range(len(processor))]
    texts = ["</s>", "<unk>", ">>deu<<", *sorted({*pieces} - {"</s>", "<unk>", "<s>"}), "<pad>"]
    write(
        folder,
        config={"model_type": "marian"},
        vocab={text: index for index, text in enumerate(texts)},
        tokenizer_config={"source_lang": "eng", "target_lang": "deu", "tokenizer_class": "MarianTokenizer"},
    )
    return source, target, texts


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
PAIRS = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 130,
}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def published(folder, family, *, languages=(), **more):
    """A folder of a family with random weights, as transformers saves them; the model in it. `languages`: tokens that
    an mBART's tokenizer has besides."""
    hf = pytest.importorskip("transformers")
    import torch

    vocab, ids = _tokenizer(folder, family, languages)
    torch.manual_seed(7)
    theirs, config = {
        "bert": lambda: (hf.BertForPreTraining, hf.BertConfig(vocab_size=vocab, **SIZES, **ids, **more)),
        "roberta": lambda: (hf.RobertaForMaskedLM, hf.RobertaConfig(
            vocab_size=vocab, max_position_embeddings=130, type_vocab_size=1, **SIZES, **ids, **more)),
        "albert": lambda: (hf.AlbertForPreTraining, hf.AlbertConfig(
            vocab_size=vocab, embedding_size=16, **SIZES, **ids, **more)),
        "gpt2": lambda: (hf.GPT2LMHeadModel, hf.GPT2Config(
            vocab_size=vocab + 3, n_positions=64, n_embd=32, n_layer=2, n_head=2, **ids, **more)),
        "llama": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(vocab_size=vocab, **SIZES, **ids, **more)),
        "t5": lambda: (hf.T5ForConditionalGeneration, hf.T5Config(
            vocab_size=vocab + 28, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, **ids, **more)),
        "bart": lambda: (hf.BartForConditionalGeneration, hf.BartConfig(vocab_size=vocab, **PAIRS, **ids, **more)),
        "mbart": lambda: (hf.MBartForConditionalGeneration, hf.MBartConfig(vocab_size=vocab, **PAIRS, **ids, **more)),
        "marian": lambda: (hf.MarianMTModel, hf.MarianConfig(
            vocab_size=vocab, decoder_vocab_size=vocab, scale_embedding=True, **PAIRS, **ids, **more)),
    }[family]()  # fmt: skip
    model = theirs(config).eval()
    with torch.no_grad():  # random biases and norms, so that a lost one shows
        for name, parameter in model.named_parameters():
            if family == "marian" and "embed_positions" in name:
                continue  # sinusoids
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model


def _tokenizer(folder, family, languages=()):
    """Write the tokenizer of a family; its size, and the ids that config.json states."""
    if family == "bert":
        return wordpiece_folder(folder), {"pad_token_id": 0}
    if family in ("roberta", "bart", "mbart"):
        ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
        ids |= {"decoder_start_token_id": 2} if family != "roberta" else {}
        return bpe_folder(folder, family, [*ROBERTA, *languages]).get_vocab_size(), ids
    if family == "gpt2":
        backend = bpe_folder(folder, family, ["<|endoftext|>"])
        return backend.get_vocab_size(), {"bos_token_id": 0, "eos_token_id": 0}
    if family == "marian":
        *_, texts = marian(folder)
        last = len(texts) - 1
        return len(texts), {"pad_token_id": last, "eos_token_id": 0, "decoder_start_token_id": last}
    if family == "llama":
        options = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 421}
        theirs = trained(folder / "tokenizer.model", normalization_rule_name="identity", **options)
        return len(theirs), {"bos_token_id": 1, "eos_token_id": 2}
    if family == "t5":
        theirs = trained(folder / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        return len(theirs) + 100, {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    theirs = trained(
        folder / "spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]"
    )
    return len(theirs), {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}

"""BERT (Devlin et al. 2019): the encoder of the paper with learned positions, token types and GELU."""

from typing import Any

from heedful.families import Family, activation_from, activation_to, transformer
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import HeadConfig, MaskedLmConfig, PoolerConfig, SequenceConfig, TokenConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.norm import NormConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack.transformer import TransformerConfig

ARCHITECTURES = {
    "ForMaskedLM": ["masked_lm"],
    "ForPreTraining": ["masked_lm", "next_sentence"],
    "ForNextSentencePrediction": ["next_sentence"],
    "ForSequenceClassification": ["sequence_classification"],
    "ForTokenClassification": ["token_classification"],
    "ForQuestionAnswering": ["answer_span"],
    "Model": ["pooler"],
}


def bert(*, width: int, hidden: int, heads: int, layers: int) -> EncoderOnlyConfig:
    theirs = {
        "architectures": ["BertForPreTraining"],
        "vocab_size": 30522,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }
    return read_config(theirs, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderOnlyConfig:
    held = held_heads(head_names("bert."), names)
    heads = read_heads(theirs, held)
    # Published files say ForMaskedLM but also contain the next-sentence head.
    if [head.kind for head in heads] == ["masked_lm"] and "next_sentence" in held:
        heads.append(SequenceConfig(kind="next_sentence", dropout=0.0))
    return read_encoder(theirs, heads, offset=0)


def held_heads(table: dict[str, str], names: set[str]) -> set[str]:
    """The heads whose tensors are all among these names."""
    every = {ours.split(".")[1] for ours in table}
    missing = {ours.split(".")[1] for ours, name in table.items() if not {name, f"{name}.weight"} & names}
    return every - missing


def read_heads(theirs: dict[str, Any], held: set[str]) -> list[HeadConfig]:
    """The heads that the architecture's name implies; for an unknown name, those in the file."""
    architecture = (theirs.get("architectures") or ["Model"])[0]
    kinds = next((kinds for suffix, kinds in ARCHITECTURES.items() if architecture.endswith(suffix)), None)
    if kinds is None:
        whole = [kinds for kinds in ARCHITECTURES.values() if held.issuperset(kinds)]
        kinds = max(whole, key=len, default=[])  # the first of the longest
    dropout = theirs.get("classifier_dropout") or theirs.get("classifier_dropout_prob")
    dropout = theirs.get("hidden_dropout_prob", 0.1) if dropout is None else dropout
    classes = len(theirs.get("id2label") or "01")
    activation = activation_from(theirs.get("hidden_act", "gelu"))
    made: dict[str, HeadConfig] = {
        "masked_lm": MaskedLmConfig(activation=activation),
        "next_sentence": SequenceConfig(kind="next_sentence", dropout=0.0),
        "sequence_classification": SequenceConfig(classes=classes, dropout=dropout),
        "token_classification": TokenConfig(classes=classes, dropout=dropout),
        "answer_span": TokenConfig(kind="answer_span", classes=classes, dropout=0.0),
        "pooler": PoolerConfig(),
    }
    return [made[kind] for kind in kinds if kind != "pooler" or "pooler" in held]


def read_encoder(theirs: dict[str, Any], heads: list[HeadConfig], *, offset: int) -> EncoderOnlyConfig:
    if theirs.get("is_decoder"):
        raise ValueError("is_decoder is true, but only bidirectional encoders of this family are supported")
    return EncoderOnlyConfig(
        vocab=theirs["vocab_size"],
        width=theirs["hidden_size"],
        token_types=theirs.get("type_vocab_size", 2),
        embedding=TokensConfig(width=theirs.get("embedding_size"), scale=False),
        encoder=TransformerConfig(
            layers=theirs["num_hidden_layers"],
            attention=MultiHeadConfig(
                heads=theirs["num_attention_heads"], dropout=theirs.get("attention_probs_dropout_prob", 0.1)
            ),
            feedforward=FeedForwardConfig(
                hidden=theirs["intermediate_size"],
                activation=activation_from(theirs.get("hidden_act", "gelu")),
            ),
            norm=NormConfig(eps=theirs.get("layer_norm_eps", 1e-12)),
            position=LearnedConfig(length=theirs["max_position_embeddings"] - offset, offset=offset),
            dropout=theirs.get("hidden_dropout_prob", 0.1),
            embedding_norm=True,
        ),
        heads=heads,
    )


def write_config(config: EncoderOnlyConfig) -> dict[str, Any]:
    return write_encoder(config, "Bert")


def write_encoder(config: EncoderOnlyConfig, prefix: str) -> dict[str, Any]:
    stack = transformer(config.encoder)
    position = stack.position
    if not isinstance(position, LearnedConfig):
        raise ValueError(f"{prefix.upper()} requires learned positions, not {position.kind}")
    keys = {
        "architectures": [prefix + architecture(config)],
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.attention.heads,
        "intermediate_size": stack.feedforward.hidden,
        "hidden_act": activation_to(stack.feedforward.activation),
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention.dropout,
        "max_position_embeddings": position.length + position.offset,
        "type_vocab_size": config.token_types,
        "layer_norm_eps": stack.norm.eps,
        "tie_word_embeddings": True,
    }
    classes = next((head.classes for head in config.heads if isinstance(head, SequenceConfig | TokenConfig)), 2)
    if classes != 2:
        keys["id2label"] = {str(label): f"LABEL_{label}" for label in range(classes)}
        keys["label2id"] = {f"LABEL_{label}": label for label in range(classes)}
    return keys


def architecture(config: EncoderOnlyConfig) -> str:
    kinds = [head.kind for head in config.heads]
    if not kinds:
        return "Model"
    found = next((suffix for suffix, known in ARCHITECTURES.items() if sorted(known) == sorted(kinds)), None)
    if found is None:
        raise ValueError(f"Hugging Face has no class with the heads {kinds}; known: {list(ARCHITECTURES.values())}")
    return found


def names(config: EncoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    base = "" if architecture(config) == "Model" else "bert."
    return {**encoder_names(base), **head_names(base)}


def head_names(base: str) -> dict[str, str]:
    return {
        "heads.pooler.dense": f"{base}pooler.dense",
        "heads.masked_lm.dense": "cls.predictions.transform.dense",
        "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "heads.masked_lm.bias": "cls.predictions.bias",
        "heads.next_sentence.pooler.dense": f"{base}pooler.dense",
        "heads.next_sentence.output": "cls.seq_relationship",
        "heads.sequence_classification.pooler.dense": f"{base}pooler.dense",
        "heads.sequence_classification.output": "classifier",
        "heads.token_classification.output": "classifier",
        "heads.answer_span.output": "qa_outputs",
    }


def encoder_names(base: str) -> dict[str, str | tuple[str, ...]]:
    ours, theirs = "encoder.layers.{}", f"{base}encoder.layer.{{}}"
    return {
        "embedding": f"{base}embeddings.word_embeddings",
        "token_types": f"{base}embeddings.token_type_embeddings.weight",
        "encoder.position": f"{base}embeddings.position_embeddings",
        "encoder.embedding_norm": f"{base}embeddings.LayerNorm",
        f"{ours}.attention.query_key_value": tuple(
            f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")
        ),
        f"{ours}.attention.output": f"{theirs}.attention.output.dense",
        f"{ours}.attention_residual.norm": f"{theirs}.attention.output.LayerNorm",
        f"{ours}.feedforward.input": f"{theirs}.intermediate.dense",
        f"{ours}.feedforward.output": f"{theirs}.output.dense",
        f"{ours}.feedforward_residual.norm": f"{theirs}.output.LayerNorm",
    }


FAMILY = Family(
    presets={
        "bert-tiny": bert(width=128, hidden=512, heads=2, layers=2),  # Turc et al. 2019, and the three that follow
        "bert-mini": bert(width=256, hidden=1024, heads=4, layers=4),
        "bert-small": bert(width=512, hidden=2048, heads=8, layers=4),
        "bert-medium": bert(width=512, hidden=2048, heads=8, layers=8),
        "bert-base": bert(width=768, hidden=3072, heads=12, layers=12),
        "bert-large": bert(width=1024, hidden=4096, heads=16, layers=24),
    },
    model_type="bert",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    architectures=tuple(ARCHITECTURES),
    ignored=(r".*embeddings\.position_ids",),
    prefix="bert.",
    bare=("embeddings.", "encoder.", "pooler."),
)

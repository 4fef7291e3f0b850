"""TEXT -> TOKENS: train and apply tokenizers. Raw text in, raw text out; independent of tensors."""

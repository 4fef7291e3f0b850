"""TOKENS -> BATCHES: read and check corpora, tokenise them once to disk, form batches."""

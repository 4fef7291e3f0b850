"""TOKENS -> BATCHES: read corpora, look them over, tokenise them once to disk, cut them into batches."""

"""DOCUMENTS + QUESTION -> PASSAGES: an index on disk; search by words, by vectors or by both; answers from sources."""

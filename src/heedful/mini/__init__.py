"""A small corpus of our own, made by a grammar: English sentences and what they are in German or Chinese."""

"""Seeing inside: what a model costs, and what it does. Looks from outside; the model stores nothing for it."""

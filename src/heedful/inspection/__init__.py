"""Inspection: what a model costs, and what it attends to. Works from outside; models store nothing for it."""

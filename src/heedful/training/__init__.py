"""Training a model: from a recipe to a model folder, safe against interruptions."""

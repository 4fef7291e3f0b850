"""The training of a model: recipe in, model folder out, nothing lost on the way."""

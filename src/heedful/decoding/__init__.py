"""MODEL -> TOKENS. A search asks a `Stepper` for what may come next, and knows nothing else of the model."""

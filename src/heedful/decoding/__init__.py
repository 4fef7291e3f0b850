"""MODEL -> TOKENS. A search sees the model only as a `Stepper`, which gives the next log-probabilities."""

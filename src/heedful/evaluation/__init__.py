"""How good is it: metrics, with sacrebleu inside."""

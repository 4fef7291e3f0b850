"""Evaluation metrics, computed by sacrebleu."""

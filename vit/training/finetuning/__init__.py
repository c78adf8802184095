"""Fine-tuning: which parameters are trained, and low-rank adapters (LoRA)."""

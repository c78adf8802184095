"""Fine-tuning: which parameters are trained, low-rank adapters (LoRA), and the normalization before a head."""

"""Fine-tunes a checkpoint to new speakers: data, losses, LoRA, training and reports."""

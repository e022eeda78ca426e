"""The names of what a participant may be asked for besides its update, and what they mean."""

ASK_TEXTS = {
    "size": "how many samples it has",
    "class_counts": "how many samples of each class it has",
    "loss_before": "the mean loss of the model that it received on its samples, before it trains",
    "batch_losses_before": "the losses of that model on batches of 64 of its samples, before it trains",
}

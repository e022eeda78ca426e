"""Trackers: each tested round, logged with the tools that people already use."""

TRACKERS = {  # by the name that --track takes; here, where nothing else is imported, because --help shows the names
    "tensorboard": "cofair.tracking.tensorboard:TensorBoard",
    "mlflow": "cofair.tracking.mlflow:MLflow",
    "wandb": "cofair.tracking.wandb:WeightsAndBiases",
}

"""What several methods share: the families of reward mechanisms."""

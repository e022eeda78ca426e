"""What stands between a method and the clients in a round: who takes part, whose upload counts, who cheats."""

"""Run folders: what is written, read back, resumed, verified and exported."""

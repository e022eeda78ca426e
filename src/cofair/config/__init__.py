"""Settings: experiments and grids of them, from TOML files."""

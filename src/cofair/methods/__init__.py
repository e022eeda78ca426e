"""The methods: one paper a file, all of them the same few functions over one loop."""

from cofair.methods import (  # noqa: F401, importing registers them
    cffl,
    cgsv,
    contract,
    dw,
    eci,
    fedave,
    fedavg,
    fedfv,
    fedrac,
    fedrolex,
    fedsac,
    fjord,
    heterofl,
    iafl,
    qffl,
    rffl,
    rr,
    standalone,
)
from cofair.methods.method import Method
from cofair.methods.registry import METHODS, get, load_file, load_installed, make, names, register
from cofair.methods.server import Server

# tables list them in this order: what fairness starts from, the baselines, the papers by year
_ORDER = (
    "standalone", "fedavg", "q-ffl", "fedfv", "cffl", "rffl", "iafl", "dw", "rr", "eci", "cgsv", "fedave",
    "heterofl", "fjord", "fedrolex", "fedsac", "fedrac", "contract",
)  # fmt: skip
for _name in _ORDER:
    if _name in METHODS:
        METHODS[_name] = METHODS.pop(_name)

__all__ = ["METHODS", "Method", "Server", "get", "load_file", "load_installed", "make", "names", "register"]

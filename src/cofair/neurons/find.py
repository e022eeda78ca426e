"""Neurons of a module that does not declare them, found by following values through it.

A layer's outputs are neurons if all that becomes of them, through activations, pooling and flattening, is to be read
by the weights of further layers. What a normalisation mixes cannot be left out one by one: of channels under
GroupNorm whole groups are neurons, and what passes through LayerNorm is none. In transformers, heads and feed-forward
units are neurons. Values that are added up (residual streams) are followed by Torch-Pruning, where it is installed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx, nn

from cofair.models.neuron_layers import NeuronLayer, Part
from cofair.neurons import coupled

_CONVOLUTIONS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_TRANSFORMER_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

# each entry by itself; names are those of functions and methods of torch as well
_ELEMENTWISE = {
    nn.Identity: "clone", nn.ReLU: "relu", nn.ReLU6: "relu6", nn.LeakyReLU: "leaky_relu", nn.ELU: "elu",
    nn.CELU: "celu", nn.SELU: "selu", nn.GELU: "gelu", nn.SiLU: "silu", nn.Mish: "mish", nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid", nn.Softplus: "softplus", nn.Softsign: "softsign", nn.Hardtanh: "hardtanh",
    nn.Hardswish: "hardswish", nn.Hardsigmoid: "hardsigmoid", nn.Hardshrink: "hardshrink",
    nn.Softshrink: "softshrink", nn.Tanhshrink: "tanhshrink", nn.LogSigmoid: "logsigmoid",
    nn.Threshold: "threshold", nn.RReLU: "rrelu", nn.Dropout: "dropout", nn.AlphaDropout: "alpha_dropout",
}  # fmt: skip
_ELEMENTWISE_NAMES = {*_ELEMENTWISE.values(), "contiguous", "relu_", "tanh_", "sigmoid_", "clamp", "exp", "abs", "neg",
                      "mul", "truediv", "add", "sub", "square", "float", "double"}  # fmt: skip
# each channel by itself
_CHANNELWISE = tuple(
    getattr(nn, f"{kind}{dims}d")
    for dims in (1, 2, 3)
    for kind in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "LPPool",
                 "Dropout", "ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")
)  # fmt: skip
_CHANNELWISE_NAMES = {
    f"{kind}{dims}d"
    for dims in (1, 2, 3)
    for kind in ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "lp_pool", "dropout")
}


def find_layers(module: nn.Module, example: Tensor | None = None) -> tuple[NeuronLayer, ...]:
    """Return the layers of neurons of any module, in the order of its parameters."""
    place = {name: i for i, (name, _) in enumerate(module.named_parameters())}
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    own = {several[0] for several in names.values() if len(several) == 1}  # a tied weight means two things at once
    layers = [layer for layer in (*_attention(module), *_followed(module, "")) if layer.parameters <= own]
    if example is not None:
        taken = {name for layer in layers for name in layer.makers}
        found = coupled.find_layers(module, example, without=taken)
        layers += [layer for layer in found if layer.parameters <= own]
    return tuple(sorted(layers, key=lambda layer: place[layer.makers[0]]))


def _attention(module: nn.Module) -> Iterator[NeuronLayer]:
    """Find whole heads of attention, and the feed-forward units of transformer layers."""
    for prefix, part in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        if type(part) is nn.MultiheadAttention:
            joined = part._qkv_same_embed_dim
            thirds = [(i * part.embed_dim, (i + 1) * part.embed_dim) for i in range(3)]
            made_by: list[str | Part] = [f"{dot}{x}_proj_weight" for x in "qkv"]
            if joined:
                made_by = [Part(f"{dot}in_proj_weight", *third) for third in thirds]
            if part.in_proj_bias is not None:
                made_by += [Part(f"{dot}in_proj_bias", *third) for third in thirds]
            yield NeuronLayer(f"{dot}heads", part.num_heads, tuple(made_by), (f"{dot}out_proj.weight",))
        elif type(part) in _TRANSFORMER_LAYERS:
            first, second = part.linear1, part.linear2
            assert isinstance(first, nn.Linear)
            assert isinstance(second, nn.Linear)
            if first.out_features == second.in_features:  # a custom activation may halve them
                made = _made_by(f"{dot}linear1", first)
                yield NeuronLayer(f"{dot}linear1", first.out_features, made, (f"{dot}linear2.weight",))


def _followed(module: nn.Module, prefix: str) -> Iterator[NeuronLayer]:
    """Follow values through a module, or through each of its parts if its own code cannot be followed."""
    if type(module) in (nn.MultiheadAttention, *_TRANSFORMER_LAYERS):
        return
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # whatever a foreign forward raises on values that are not there yet
        for name, child in module.named_children():
            yield from _followed(child, f"{prefix}{name}.")
        return
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    parts = {name: part for name, part in module.named_modules() if calls[name] == 1 or not list(part.parameters())}
    for node in graph.nodes:
        part = parts.get(str(node.target)) if node.op == "call_module" else None
        if part is not None and type(part) in (nn.Linear, *_CONVOLUTIONS) and not _is_depthwise(part):
            outputs = _Outputs(prefix, parts, str(node.target))
            if outputs.everywhere(node, _Shape(_CONVOLUTIONS.get(type(part), 0))) and outputs.read_by:
                yield NeuronLayer(f"{prefix}{node.target}", outputs.count, outputs.made_by, outputs.read_by)


@dataclass(frozen=True)
class _Shape:
    """Where neurons stand in a value: `trailing` dimensions follow theirs; `flat` ones were joined with it."""

    trailing: int
    flat: bool = False


class _Outputs:
    """The outputs of one layer on their way to all their readers."""

    def __init__(self, prefix: str, parts: dict[str, nn.Module], maker: str) -> None:
        self.prefix, self.parts, self.maker = prefix, parts, parts[maker]
        self.made_by: tuple[str | Part, ...] = _made_by(f"{prefix}{maker}", self.maker)
        self.read_by: tuple[str | Part, ...] = ()
        self.width = len(self.maker.get_parameter("weight"))  # entries of the dimension they stand in
        self.count = self.width  # neurons among these

    def everywhere(self, node: fx.Node, shape: _Shape) -> bool:
        """Follow a value to all its uses; tell whether these left its neurons apart and read all of them."""
        return all(self._use(node, user, shape) for user in node.users)

    def _use(self, node: fx.Node, user: fx.Node, shape: _Shape) -> bool:
        if _is_size(user):
            return True
        if [other for other in user.all_input_nodes if not _is_size(other)] != [node]:
            return False
        if user.op == "call_module":
            return self._module(user, self.parts.get(str(user.target)), shape)
        if user.op not in ("call_function", "call_method"):
            return False  # the model's own outputs
        name = user.target if isinstance(user.target, str) else getattr(user.target, "__name__", "")
        if name in _ELEMENTWISE_NAMES or (name in _CHANNELWISE_NAMES and shape.trailing):
            return self.everywhere(user, shape)
        if _flattens(user, name):
            return self.everywhere(user, _Shape(0, flat=True))
        if name in ("mean", "amax", "sum") and (lost := _reduced(user, shape.trailing)) is not None:
            return self.everywhere(user, _Shape(shape.trailing - lost))
        return False

    def _module(self, user: fx.Node, part: nn.Module | None, shape: _Shape) -> bool:
        name = f"{self.prefix}{user.target}"
        if type(part) in _ELEMENTWISE or (isinstance(part, _CHANNELWISE) and shape.trailing):
            return self.everywhere(user, shape)
        if isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) == (1, -1):
            return self.everywhere(user, _Shape(0, flat=True))
        if type(part) is nn.Linear:
            return not shape.trailing and self._read(f"{name}.weight", part.in_features, shape)
        if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) and type(part) in _CONVOLUTIONS:
            if shape.trailing != _CONVOLUTIONS[type(part)]:
                return False
            if part.groups == 1:
                return self._read(f"{name}.weight", part.in_channels, shape)
            if _is_depthwise(part):  # the neurons pass through it, each by itself
                self.width = part.out_channels
                return self._also_made_by(name, part) and self.everywhere(user, shape)
            return False
        if shape.flat:
            return False
        if isinstance(part, nn.PReLU):
            shared = part.num_parameters == 1
            return (shared or self._also_made_by(name, part)) and self.everywhere(user, shape)
        if isinstance(part, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):
            return self._also_made_by(name, part) and self.everywhere(user, shape)
        if isinstance(part, nn.GroupNorm):
            return self._normalised(part.num_groups) and self._also_made_by(name, part) and self.everywhere(user, shape)
        return False

    def _normalised(self, groups: int) -> bool:
        """Take whole groups of a normalisation as neurons, unless there is but one."""
        if self.count % groups and groups % self.count:
            return False
        self.count = min(self.count, groups)
        return self.count > 1

    def _also_made_by(self, name: str, part: nn.Module) -> bool:
        self.made_by += _made_by(name, part)
        return True

    def _read(self, weight: str, inputs: int, shape: _Shape) -> bool:
        """Note a reader; a flattened feature map gives every channel a run, flattened features come in turns."""
        if inputs % self.width or (inputs != self.width and not shape.flat):
            return False
        turns = inputs // self.width
        if turns > 1 and isinstance(self.maker, nn.Linear):
            self.read_by += tuple(Part(weight, i * self.width, (i + 1) * self.width) for i in range(turns))
        else:
            self.read_by += (weight,)
        return True


def _made_by(name: str, part: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}.{own}" for own in ("weight", "bias") if getattr(part, own, None) is not None)


def _is_depthwise(part: nn.Module) -> bool:
    return getattr(part, "in_channels", 1) == getattr(part, "groups", 1) > 1


def _is_size(node: fx.Node) -> bool:
    """Say whether a node only asks for a size, as x.size(0), x.shape[0]."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] == "shape"
    return (
        getattr(node.target, "__name__", "") == "getitem"
        and isinstance(node.args[0], fx.Node)
        and _is_size(node.args[0])
    )


def _flattens(node: fx.Node, name: str) -> bool:
    """Say whether a call joins all dimensions but the first."""
    rest = node.args[1:]
    if name == "flatten":
        start = rest[0] if rest else node.kwargs.get("start_dim", 0)
        end = rest[1] if len(rest) > 1 else node.kwargs.get("end_dim", -1)
        return (start, end) == (1, -1)
    if name in ("view", "reshape"):
        sizes = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
        return len(sizes) == 2
    return False


def _reduced(node: fx.Node, trailing: int) -> int | None:
    """Return how many of the trailing dimensions a mean, maximum or sum takes away, or None if it takes others."""
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = (dims,) if isinstance(dims, int) else dims
    if not isinstance(dims, list | tuple) or not all(isinstance(dim, int) for dim in dims):
        return None
    if any(not (2 <= dim < 2 + trailing or -trailing <= dim < 0) for dim in dims if isinstance(dim, int)):
        return None
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return 0 if keep else len(dims)

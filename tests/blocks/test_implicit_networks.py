"""Networks as people have them, made implicit: a ResNet with batch norm, and pre-norm transformers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import resolvent as rs
from resolvent.blocks import make_implicit
from seeding import shifted

STOPPING = rs.Stopping(rtol=1e-11)


def check_gradients(model: nn.Module, x: Tensor) -> None:
    """Gradients in the input and in all weights, against finite differences."""
    names, weights = zip(*model.named_parameters(), strict=True)

    def call(x: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, weights, strict=True)), (x,))

    leaves = [leaf.detach().clone().requires_grad_() for leaf in (x, *weights)]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True, atol=1e-6, rtol=1e-4)


class BasicBlock(nn.Module):
    """A block as in torchvision's ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def resnet() -> nn.Module:
    """With running statistics of data, and slopes for which the implicit blocks have a solution."""
    torch.manual_seed(shifted(0))
    blocks = BasicBlock(2, 2), BasicBlock(2, 3, stride=2), BasicBlock(3, 3)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(3 * 9, 2))
    for block in blocks:
        nn.init.constant_(block.bn2.weight, 0.1)
    model(torch.randn(20, 1, 6, 6))
    return model


def same_shape(name: str, module: nn.Module) -> bool:
    return isinstance(module, BasicBlock) and module.downsample is None


def freeze_statistics(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def test_a_resnet_with_batch_norm_works_in_evaluation_mode() -> None:
    model = resnet().eval()
    implicit = make_implicit(model, 0.5, predicate=same_shape, stopping=STOPPING)
    x = torch.randn(3, 2, 6, 6)
    y = implicit[1](x)
    w = (x + y) / 2
    torch.testing.assert_close(y, x + model[1](w) - w, atol=1e-9, rtol=0)
    assert list(implicit.state_dict()) == list(model.state_dict())
    with pytest.raises(ValueError, match=r"BasicBlock maps .* let the predicate skip it"):
        make_implicit(model, 0.5, predicate=lambda name, module: isinstance(module, BasicBlock))(
            torch.randn(3, 1, 6, 6)
        )


def test_batch_norm_is_refused_in_training_mode_and_trains_with_frozen_statistics() -> None:
    implicit = make_implicit(resnet(), 0.5, predicate=same_shape, stopping=STOPPING).train()
    image = torch.randn(3, 1, 6, 6)
    with pytest.raises(ValueError, match=r"1\.bn1, a BatchNorm2d, .*put this module alone in evaluation mode"):
        implicit(image)
    freeze_statistics(implicit)
    before = [buffer.clone() for buffer in implicit.buffers()]
    together = implicit(image)
    together.square().sum().backward()
    assert all(parameter.grad is not None for parameter in implicit.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, implicit.buffers(), strict=True))
    torch.testing.assert_close(implicit(image[1:2]), together[1:2], atol=1e-8, rtol=0)


def test_gradients_with_frozen_statistics_are_those_of_finite_differences() -> None:
    # Smooth: finite differences across the kink of a relu are wrong.
    model = resnet()
    for module in model.modules():
        if isinstance(module, BasicBlock):
            module.relu = nn.Softplus()
    implicit = make_implicit(model, 0.5, predicate=same_shape, stopping=STOPPING).train()
    freeze_statistics(implicit)
    check_gradients(implicit, torch.randn(2, 1, 6, 6))


class Attend(nn.Module):
    """Attention behind a norm, with masks that it closes over."""

    def __init__(self, causal: Tensor | None = None, padding: Tensor | None = None) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.causal, self.padding = causal, padding

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        masks = {"attn_mask": self.causal, "key_padding_mask": self.padding}
        return self.attention(x, x, x, need_weights=False, **masks)[0]


class Residual(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def transformer(**masks: Tensor) -> nn.Sequential:
    """A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x))."""
    torch.manual_seed(shifted(0))
    mlp = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    model = nn.Sequential(Residual(Attend(**masks)), Residual(mlp))
    with torch.no_grad():
        for last in (model[0].branch.attention.out_proj, mlp[3]):
            last.weight.mul_(0.5)
    return model


def sub_block(name: str, module: nn.Module) -> bool:
    return isinstance(module, Residual)


def branch(name: str, module: nn.Module) -> bool:
    return name in ("0.branch", "1.branch")


PADDING = torch.tensor([[False, False, False], [False, False, True], [False, True, True]])
MASKS = [{}, {"causal": torch.ones(3, 3).triu(1).bool()}, {"padding": PADDING}]


@pytest.mark.parametrize(("kind", "predicate"), [("branch", branch), ("block", sub_block)])
@pytest.mark.parametrize("masks", MASKS, ids=["no mask", "causal", "padding"])
def test_a_transformer_block_is_implicit_by_branch_or_by_sub_block(
    kind: str, predicate: Callable[[str, nn.Module], bool], masks: dict[str, Tensor]
) -> None:
    model, tokens = transformer(**masks), torch.randn(3, 3, 4)
    implicit = make_implicit(model, 0.5, predicate=predicate, kind=kind, stopping=STOPPING)
    for mode in (True, False):
        x = tokens
        for explicit, layer in zip(model.train(mode), implicit.train(mode), strict=True):
            y = layer(x)
            torch.testing.assert_close(y, x + explicit.branch((x + y) / 2), atol=1e-9, rtol=0)
            x = y
    assert list(implicit.state_dict()) == list(model.state_dict())


def test_gradients_of_a_transformer_block_are_those_of_finite_differences() -> None:
    implicit = make_implicit(transformer(padding=PADDING), 0.5, predicate=branch, kind="branch", stopping=STOPPING)
    check_gradients(implicit, torch.randn(3, 3, 4))


def test_a_mask_may_be_set_before_each_call() -> None:
    model, tokens = transformer(), torch.randn(3, 3, 4)
    implicit = make_implicit(model, 0.5, predicate=branch, kind="branch", stopping=STOPPING).eval()
    implicit(tokens)
    for attend in (module for module in implicit.modules() if isinstance(module, Attend)):
        attend.padding = PADDING
    model[0].branch.padding = PADDING
    y = implicit[0](tokens)
    torch.testing.assert_close(y, tokens + model[0].branch((tokens + y) / 2), atol=1e-9, rtol=0)


def encoder_layer(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(shifted(0))
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout, "gelu", batch_first=True, norm_first=True)
    with torch.no_grad():
        layer.linear2.weight.mul_(0.5)
        layer.self_attn.out_proj.weight.mul_(0.5)
    return layer


def whole(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.TransformerEncoderLayer)


def test_an_encoder_layer_of_torch_is_one_block() -> None:
    layer, x = encoder_layer(), torch.randn(3, 5, 4)
    implicit = make_implicit(nn.Sequential(layer), 0.5, predicate=whole, stopping=STOPPING)
    y = implicit(x)
    w = (x + y) / 2
    torch.testing.assert_close(y, x + layer(w) - w, atol=1e-9, rtol=0)
    torch.testing.assert_close(implicit.eval()(x), y, atol=1e-8, rtol=0)
    with torch.no_grad():  # where torch takes another implementation
        torch.testing.assert_close(implicit(x), y, atol=1e-8, rtol=0)
    check_gradients(implicit.train(), x)


class Padded(nn.Module):
    """An encoder layer with the mask of its batch."""

    def __init__(self, padding: Tensor) -> None:
        super().__init__()
        self.layer, self.padding = encoder_layer(), padding

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, src_key_padding_mask=self.padding)


@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_layer_closes_over_its_mask(training: bool) -> None:
    model, x = nn.Sequential(Padded(PADDING)).train(training), torch.randn(3, 3, 4)
    implicit = make_implicit(model, 0.5, predicate=lambda name, module: name == "0", stopping=STOPPING)
    y = implicit(x)
    w = (x + y) / 2
    torch.testing.assert_close(y, x + model(w) - w, atol=1e-9, rtol=0)
    other = torch.where(PADDING[..., None], x + 1, x)
    torch.testing.assert_close(implicit(other)[~PADDING], y[~PADDING], atol=1e-8, rtol=0)


def test_dropout_is_refused_in_training_mode_unless_it_is_drawn_once_a_pass() -> None:
    x = torch.randn(3, 5, 4)
    implicit = make_implicit(nn.Sequential(encoder_layer(0.1)), 0.5, predicate=whole)
    with pytest.raises(ValueError, match=r"0\.\w+(\.\w+)*, a \w+, .*FrozenRandomness"):
        implicit(x)
    assert implicit.eval()(x).isfinite().all()

    wrapped = nn.Sequential(rs.blocks.FrozenRandomness(encoder_layer(0.1)))
    implicit = make_implicit(
        wrapped, 0.5, predicate=lambda name, module: isinstance(module, rs.blocks.FrozenRandomness), stopping=STOPPING
    )
    torch.manual_seed(1)
    first = implicit(x)
    first.sum().backward()
    torch.manual_seed(1)
    torch.testing.assert_close(implicit(x), first, atol=1e-9, rtol=0)
    assert (implicit(x) - first).abs().max() > 1e-3
    assert all(parameter.grad is not None for parameter in implicit.parameters())


def test_dropout_inside_of_attention_is_found_for_a_single_sample() -> None:
    model = transformer()
    model[0].branch.attention.dropout = 0.1
    implicit = make_implicit(model, 0.5, predicate=branch, kind="branch")
    with pytest.raises(ValueError, match=r"0\.branch\.attention, a MultiheadAttention, gives another result"):
        implicit(torch.randn(1, 3, 4))


def test_what_a_transformer_of_torch_passes_to_its_layers_is_refused_with_the_way_out() -> None:
    encoder, x = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False), torch.randn(3, 5, 4)
    with pytest.raises(ValueError, match=r"'layers\.0' is a layer of nn.TransformerEncoder, .*nn.Sequential"):
        make_implicit(encoder, 0.5, predicate=whole)
    with pytest.raises(ValueError, match=r"'0\.layers\.0' is a layer of nn.TransformerEncoder"):
        make_implicit(nn.Sequential(encoder), 0.5, predicate=whole)
    implicit = make_implicit(nn.Sequential(*encoder.layers), 0.5, predicate=whole)
    assert implicit(x).shape == x.shape
    with pytest.raises(ValueError, match=r"0 is called with arguments beyond the state.*that holds them"):
        implicit[0](x, src_mask=torch.zeros(5, 5))

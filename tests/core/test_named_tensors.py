import torch

from fedexp.core.named_tensors import prefixed, with_prefix


def test_with_prefix_inverts_prefixed() -> None:
    tensors = {"a.weight": torch.tensor(1.0)}
    both = prefixed("x", tensors) | prefixed("xy", {"b": torch.tensor(2.0)})
    assert set(both) == {"x/a.weight", "xy/b"}
    assert with_prefix("x", both) == tensors

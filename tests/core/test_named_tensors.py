import torch

from fedexp.core.named_tensors import floats, prefixed, with_prefix


def test_floats_leaves_out_integers() -> None:
    tensors = {"weight": torch.tensor(1.0), "half": torch.tensor(1.0).half()}
    assert floats(tensors | {"num_batches_tracked": torch.tensor(3)}) == tensors


def test_with_prefix_inverts_prefixed() -> None:
    tensors = {"a.weight": torch.tensor(1.0)}
    both = prefixed("x", tensors) | prefixed("xy", {"b": torch.tensor(2.0)})
    assert set(both) == {"x/a.weight", "xy/b"}
    assert with_prefix("x", both) == tensors

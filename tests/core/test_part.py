from fedexp.core.part import Part, has_server_half


class Counting(Part):
    saved = ("releases",)


def test_a_part_whose_server_keeps_a_state_has_a_server_half() -> None:
    assert has_server_half(Counting())
    assert not has_server_half(Part())

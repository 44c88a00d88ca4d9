"""The clock of a round by hand, for three clients."""

import pytest
from support.three_devices import THREE

from fedexp.errors import InputError
from fedexp.system.round_time import round_time
from fedexp.system.turns import Outcome, TurnRecord


def turn(
    client: int, samples: int = 40, upload: int = 400, outcome: Outcome = "sent"
) -> TurnRecord:
    return TurnRecord(client, samples, 2, 2000, upload, outcome)


def test_a_turn_is_two_latencies_the_download_the_samples_and_the_upload() -> None:
    turns = [turn(0), turn(1), turn(2)]
    by_hand = [1.0 + 2 + 4 + 4, 0.5 + 1 + 2 + 2, 0.25 + 0.5 + 1 + 1]
    assert THREE.seconds_of(turns) == by_hand
    assert THREE.seconds_of([]) == []


def test_a_round_lasts_as_long_as_its_slowest_client() -> None:
    found = round_time([turn(2), turn(0), turn(1)], THREE, start=100.0)
    assert found.seconds == 11
    assert found.end == 111
    assert found.of_clients == {0: 11.0, 1: 5.5, 2: 2.75}
    assert found.idle_share == pytest.approx((0 + 5.5 + 8.25) / 3 / 11)


def test_the_answers_to_the_sampler_come_first_and_together() -> None:
    asked = [TurnRecord(client, 0, 0, 2000, 100, "asked") for client in (0, 1)]
    trained = TurnRecord(1, 40, 2, 0, 400, "sent")  # it has the message already
    found = round_time([*asked, trained], THREE)
    slowest_answer, own_answer = 1.0 + 2 + 1, 0.5 + 1 + 0.5
    own_turn = 0.5 + 2 + 2
    assert found.seconds == slowest_answer + own_turn
    assert found.idle_share == pytest.approx(1 - (own_answer + own_turn) / found.seconds)


def test_a_client_that_drops_out_is_waited_for_until_it_has_the_message() -> None:
    dropped = turn(0, samples=0, upload=0, outcome="dropped")
    assert round_time([dropped, turn(2)], THREE).seconds == 1.0 + 2
    alone = round_time([dropped], THREE)
    assert (alone.seconds, alone.idle_share, alone.of_clients) == (3.0, None, {})
    assert round_time([dropped, turn(2), turn(1, outcome="surplus")], THREE).seconds == 2.75


def test_a_refused_update_is_waited_for() -> None:
    assert round_time([turn(0, outcome="refused"), turn(2)], THREE).seconds == 11


def test_the_notice_of_a_client_that_dropped_out_is_awaited_until_the_deadline() -> None:
    dropped = turn(0, samples=0, upload=0, outcome="dropped")  # its notice takes 3 seconds
    assert round_time([dropped, turn(2)], THREE, deadline=2.9).seconds == 2.9
    assert round_time([dropped, turn(2)], THREE, deadline=3.1).seconds == 3


def test_a_late_client_makes_the_round_last_until_the_deadline() -> None:
    turns = [turn(2), turn(0, upload=0, outcome="late")]
    assert round_time(turns, THREE, deadline=6.0).seconds == 6
    assert round_time([turn(2), turn(1)], THREE, deadline=6.0).seconds == 5.5


def test_surplus_clients_are_not_waited_for() -> None:
    assert round_time([turn(2), turn(1), turn(0, outcome="surplus")], THREE).seconds == 5.5


def test_clients_that_were_left_out_have_the_seconds_of_a_whole_turn() -> None:
    turns = [turn(2), turn(1, upload=0, outcome="surplus"), turn(0, upload=0, outcome="late")]
    found = round_time([*turns, TurnRecord(0, 0, 0, 0, 9000, "asked")], THREE, deadline=6.0)
    assert found.of_clients == {2: 2.75, 1: 5.5, 0: 11.0}  # each with an upload of 400 bytes
    no_arrival = round_time(turns[1:], THREE, deadline=6.0, expected_upload=400)
    assert no_arrival.of_clients == {1: 5.5, 0: 11.0}


def test_a_round_without_clients_takes_no_time() -> None:
    found = round_time([], THREE, start=3.0)
    assert (found.seconds, found.end, found.idle_share) == (0.0, 3.0, None)


def test_turns_of_an_asynchronous_run_are_refused() -> None:
    turns = [TurnRecord(0, 0, 0, 1000, 0, "started"), TurnRecord(1, 5, 1, 0, 100, "buffered")]
    for turn in turns:
        with pytest.raises(InputError, match=r"^turns: .*coordination=buffered"):
            round_time([turn], THREE)

"""Devices are drawn by seed and client, or read from a table."""

from pathlib import Path

import numpy as np
import pytest
from support.federations import compose

from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.system.lognormal import LogNormal
from fedexp.system.source import CountFlops, DeviceSource
from fedexp.system.table import PROFILES, Table
from fedexp.system.uniform import Uniform


def no_flops() -> np.ndarray:
    raise AssertionError("nobody asked for operations")


def equal_flops(num_clients: int, flops: float) -> CountFlops:
    return lambda: np.full(num_clients, flops)


def uniform() -> Uniform:
    return Uniform([10.0, 30.0], None, [1e5, 3e5], 50.0, 0.1)


def lognormal(spread: float) -> LogNormal:
    return LogNormal(200.0, None, 4e6, 1e6, 0.05, spread, spread)


@pytest.mark.parametrize("source", [uniform(), lognormal(1.0), Table("phones")])
def test_a_device_depends_on_seed_and_client_alone(source: DeviceSource) -> None:
    few, many = source.draw(3, 7, equal_flops(3, 10)), source.draw(50, 7, equal_flops(50, 10))
    other = source.draw(50, 8, equal_flops(50, 10))
    for name in ("samples_per_second", "download", "upload", "latency"):
        assert (getattr(few, name) == getattr(many, name)[:3]).all()
    assert (other.samples_per_second != many.samples_per_second).any()


def test_uniform_values_lie_in_their_ranges() -> None:
    found = uniform().draw(2000, 0, no_flops)
    assert 10 <= found.samples_per_second.min() < 10.5
    assert 29.5 < found.samples_per_second.max() <= 30
    assert found.download.mean() == pytest.approx(2e5, rel=0.02)
    assert (found.upload == 50).all()
    assert (found.latency == 0.1).all()
    assert abs(np.corrcoef(found.samples_per_second, found.download)[0, 1]) < 0.1


def test_lognormal_speeds_have_the_median_and_the_spread() -> None:
    found = lognormal(0.5).draw(20_000, 0, no_flops)
    assert np.median(found.samples_per_second) == pytest.approx(200, rel=0.02)
    assert np.log(found.samples_per_second).std() == pytest.approx(0.5, rel=0.02)
    assert found.download / found.upload == pytest.approx(4)
    assert (lognormal(0.0).draw(3, 0, no_flops).upload == 1e6).all()


def test_speeds_in_operations_are_divided_by_the_operations_of_a_sample() -> None:
    found = Uniform(None, 1e9, 1.0, 1.0, 0.0).draw(2, 0, lambda: np.array([5e6, 2e6]))
    assert found.samples_per_second.tolist() == [200, 500]


def test_either_samples_or_operations() -> None:
    with pytest.raises(InputError, match="neither is set"):
        Uniform(None, None, 1.0, 1.0, 0.0)
    with pytest.raises(InputError, match="both are set"):
        LogNormal(1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.csv")), ids=lambda path: path.stem)
def test_each_profile_names_its_sources_and_is_an_option(path: Path) -> None:
    assert "data sheet" in path.read_text() or "Ookla" in path.read_text()
    planned = plan(compose(f"system={path.stem}"))
    planned.system.setup(40, 0, equal_flops(40, 1e5))
    devices = planned.system.devices
    assert devices is not None
    assert len(set(devices.samples_per_second.tolist())) > 1


def written(folder: Path, text: str) -> Path:
    path = folder / "own.csv"
    path.write_text(text)
    return path


def test_rows_of_a_table_are_clients_if_they_are_numbered(tmp_path: Path) -> None:
    text = "# mine\nclient,samples_per_second,download,upload,latency\n1,5,6,7,0\n0,1,2,3,4\n"
    source = Table(str(written(tmp_path, text)))
    source.check(2)
    found = source.draw(2, 0, no_flops)
    assert found.samples_per_second.tolist() == [1, 5]
    assert found.latency.tolist() == [4, 0]
    with pytest.raises(InputError, match="each of the clients 0 to 2 once; lacks 2"):
        source.check(3)


HEADING = "samples_per_second,download,upload,latency\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "needs a line of column names and at least one row"),
        (HEADING, "needs a line of column names and at least one row"),
        ("samples_per_second,download,latency\n1,1,1\n", "lacks the column upload"),
        ("download,upload,latency\n1,1,1\n", "needs one of the columns samples_per_second and"),
        (HEADING + "1,1,1\n", "row 1 has 3 values, but there are 4 columns"),
        (HEADING + "1,1,1,1\n1,fast,1,1\n", "download is 'fast' in row 2; should be a number"),
        (HEADING + "1,-1,1,1\n", "download is '-1' in row 1; should be a number of at least 0"),
        (HEADING + "1,nan,1,1\n", "download is 'nan' in row 1"),
        (HEADING + "1,0,1,1\n", "download is 0 in row 1; should be above 0"),
        ("speed," + HEADING + "1,1,1,1,1\n", "unknown column 'speed'; there are download,"),
        ("upload," + HEADING + "1,1,1,1,1\n", "two columns are named upload"),
        (HEADING + "0" * 200_000 + ",1,1,1\n", "cannot be read \\(field larger than field limit"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=error) as caught:
        plan(compose("system=table", f"system.file={written(tmp_path, text)}"))
    assert str(caught.value).startswith("system.file=")
    assert "\n" not in str(caught.value)


def test_two_rows_of_one_client_are_refused(tmp_path: Path) -> None:
    for text in ("0,1,1,1,1\n0,1,1,1,1\n1,1,1,1,1\n", "0,1,1,1,1\n1,1,1,1,1\n1,2,2,2,2\n"):
        source = Table(str(written(tmp_path, "client," + HEADING + text)))
        with pytest.raises(InputError, match="two rows have the same client"):
            source.check(2)


def test_rows_of_more_clients_are_not_used(tmp_path: Path) -> None:
    text = "client," + HEADING + "2,9,9,9,9\n2,8,8,8,8\n0,1,1,1,1\n1,2,2,2,2\n"
    source = Table(str(written(tmp_path, text)))
    source.check(2)
    assert source.draw(2, 0, no_flops).samples_per_second.tolist() == [1, 2]


def test_a_missing_file_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"system.file=no.csv: cannot be read \(No such file"):
        plan(compose("system=table", "system.file=no.csv"))

"""The same few runs for all tests of this folder."""

from pathlib import Path

import pytest
from support.trained_runs import Trained, digits, images, table, text

KINDS = ("digits", "table", "images", "text")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, image_tree: Path) -> dict[str, Trained]:
    """Kind of data -> a run. The one on digits holds out validation data."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    return {
        "digits": digits(folders["digits"], "algorithm=fednh", "data.validation=0.2"),
        "table": table(folders["table"]),
        "images": images(folders["images"], image_tree),
        "text": text(folders["text"], "algorithm=fedavg"),
    }

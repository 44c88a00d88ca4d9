"""A config is composed in a process that has imported nothing else of fedexp."""

import subprocess
import sys

CODE = "from fedexp.cli.compose import composed; print(composed(['rounds=3']).config['rounds'])"


def test_it_needs_no_other_import() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr

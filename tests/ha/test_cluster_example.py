"""The example of a cluster ends what it has started, however it is told to end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# The example without its servers: `start` may take minutes.
_RUN = """
import sys, time
from examples.failover import cluster

class Empty(cluster.Cluster):
    def start(self):
        print("starts", flush=True)
        if "slowly" in sys.argv:
            time.sleep(60)
        self.nodes = []
    def stop(self):
        print("stopped", flush=True)

cluster.Cluster, cluster.missing = Empty, lambda: ""
sys.exit(cluster.main())
"""


@pytest.mark.parametrize("when", ["slowly", "at once"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_servers_too(number: signal.Signals, when: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _RUN, when], stdout=subprocess.PIPE, text=True) as example:
        assert example.stdout is not None
        assert example.stdout.readline() == "starts\n"
        if when == "at once":
            assert example.stdout.readline().startswith("export PGQUEUE_DSN=")
        example.send_signal(number)
        assert example.stdout.read() == "stopped\n"
    assert example.returncode == 0

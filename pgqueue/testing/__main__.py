"""Print the SQL of the clock that tests can move: `python -m pgqueue.testing | psql`."""

import sys

from pgqueue.testing.clock import clock_sql

sys.stdout.write(clock_sql())

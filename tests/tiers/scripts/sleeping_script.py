"""A user's script that starts a child, writes both pids into the file argv[1], and sleeps in its first turn."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import windfall.paramserver as ps

child = subprocess.Popen(["sleep", "3600"])
server = ps.connect(rows=2, width=1, first=lambda rows: np.zeros((len(rows), 1)), dtype=np.float64)
for _ in server.turns():
    written = Path(sys.argv[1])
    written.with_suffix(".draft").write_text(f"{os.getpid()} {child.pid}")
    written.with_suffix(".draft").rename(written)
    time.sleep(3600)

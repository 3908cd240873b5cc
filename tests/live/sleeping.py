"""A training script that waits instead of computing, so that runs beside each other take as long as alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def main() -> None:
    import windfall as wf

    steps, step_s = int(os.environ["STEPS"]), float(os.environ["STEP_S"])
    done = 0
    if found := wf.last():
        done = json.loads(Path(found).read_text())["step"]
    while done < steps:
        with wf.step_context():
            time.sleep(step_s)
            done += 1
        if wf.check_save() or done == steps:
            path = Path(f"state-{done}.json")
            path.write_text(json.dumps({"step": done}))
            wf.backup(str(path))


if __name__ == "__main__":
    main()

"""Print as JSON what the embedded engine has: drafting methods and devices. Runs in a child process."""

from __future__ import annotations

import json
import os
import sys

from dflash_convert.engine import settings


def main() -> None:
    output = os.dup(1)
    os.dup2(2, 1)  # whatever the library prints is not part of the answer
    import xllamacpp

    mib = 1 << 20
    devices = [
        f"{d['name']}: {d['description']} ({d['memory_total'] // mib} MiB, {d['memory_free'] // mib} MiB free)"
        for d in xllamacpp.get_device_info()
    ]
    answer = {
        "spec_types": list(xllamacpp.common_speculative_type.__members__),
        "devices": devices,
        "options": settings.known_to(xllamacpp.CommonParams()),
    }
    sys.stdout.flush()
    os.write(output, json.dumps(answer).encode())
